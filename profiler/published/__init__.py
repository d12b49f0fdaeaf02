"""Published benchmarks beside own runs.

The way: studies → references, setups → tables, layers, study → conclusions; suites lists the jobs.
"""
