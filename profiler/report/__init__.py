"""Write a report of runs: one page, Markdown or CSV.

command gathers `Data` (data), from which it composes a `Report` (sections) of tables, charts and findings, and writes
that (page, markdown, images).
"""
