"""`profiler compare`: several runs side by side.

Data flows through command → cells → regression → view, which has the totals; command also lists what the environments
differ in.
"""
