"""`profiler compare`: several runs side by side.

Data flows through command → cells → regression → view, with the totals.
"""
