"""Sessions of JAX, which compiles a network and its gradients with XLA."""
