"""Show runs next to published benchmarks: studies → references → times → tables → cleaning → command."""
