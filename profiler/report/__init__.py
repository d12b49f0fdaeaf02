"""Make the report of runs: what to deploy, charts, every table, the machine and the method, as one page.

command gathers `Data` (data), composes a `Report` of charts and tables from it (sections), and writes it (page).
"""
