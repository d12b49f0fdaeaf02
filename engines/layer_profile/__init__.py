"""Time a network layer by layer and name each layer by the nodes of the exported graph."""
