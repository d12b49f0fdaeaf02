"""Make the report of runs as one page: data are gathered, then tables and charts, then the page."""
