"""Look at the machine: its device, its processors and its GPU."""
