"""Check finished runs of suites and write what of them may be published, without a trace of whose machine it was."""
