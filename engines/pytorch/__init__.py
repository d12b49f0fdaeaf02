"""Sessions that run a network in PyTorch: eager, compiled, training, single layers."""
