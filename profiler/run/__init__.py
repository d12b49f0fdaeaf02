"""Run a job from the parent process: prepare, measure case by case, print the summary."""
