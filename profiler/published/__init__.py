"""Compare runs with published benchmarks.

From first to last: studies → references → setups → printed, layers, tables → conclusions; suites lists the jobs.
"""
