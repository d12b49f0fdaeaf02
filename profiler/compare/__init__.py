"""`profiler compare`: several runs side by side.

Data flows through command → cells → totals, regression, differences → view.
"""
