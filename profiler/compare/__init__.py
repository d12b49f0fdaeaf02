"""Compare several runs side by side: their cells, and how their environments and models differ."""
