"""`profiler report`: one page that tells of runs.

The way: write → data → tables, findings, charts → sections → page, markdown, images.
"""
