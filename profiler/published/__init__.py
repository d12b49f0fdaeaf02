"""Compare runs with published benchmarks.

From first to last: studies → references → setups → printed, machines, tables, pictures → conclusions → claims (the
published statements, and what own rows answer) → page.
"""
