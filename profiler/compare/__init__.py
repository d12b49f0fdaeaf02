"""Compare several runs side by side: cells, and what their environments and models do not have in common."""
