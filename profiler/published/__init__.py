"""Show runs next to published benchmarks."""
