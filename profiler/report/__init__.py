"""Write the report of runs as one page."""
