"""`profiler compare`: several runs side by side.

The way: job → cells → ratios → totals, regression, differences → view.
"""
