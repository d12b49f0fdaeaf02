"""`profiler compare`: several runs side by side.

Data flows through command → cells → view; differences are those of the sides' environments and models.
"""
