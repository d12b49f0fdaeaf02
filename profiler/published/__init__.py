"""Compare runs with published benchmarks.

From first to last: studies → references → setups → printed, layers, tables, pictures → conclusions; suites lists
the jobs.
"""
