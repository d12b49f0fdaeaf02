"""Say what one's own rows have to do with the statements of a published benchmark.

kinds has the table; evidence what they are answered with; speeds, memory and sweeps the functions.
"""
