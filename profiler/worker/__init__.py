"""Do the work inside a child process: prepare a model, measure a case."""
