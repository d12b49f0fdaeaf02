"""Say what one's own rows have to do with the statements of a published benchmark.

evidence has what they are answered with; answers has the functions, page the table of them.
"""
