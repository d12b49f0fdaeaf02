"""Check the statements of a published benchmark against its rows, and say what one's own rows have to do with them.

kinds has the table; evidence what they are checked with; speed, networks, libraries, memory and sweeps the functions.
"""
