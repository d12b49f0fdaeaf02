"""Run a function in a child process, whatever happens to it."""
