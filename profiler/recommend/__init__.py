"""Say what to deploy: a request is answered as data, printed, and exported ready to run."""
