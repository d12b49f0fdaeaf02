"""Turn a YAML file into the cases of a run."""
