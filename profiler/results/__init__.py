"""Write the results of a run, and read them."""
