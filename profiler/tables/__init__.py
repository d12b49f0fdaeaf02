"""Format tables for the terminal, Markdown, CSV and HTML."""
