"""Compute medians, intervals, ratios and verdicts from samples."""
