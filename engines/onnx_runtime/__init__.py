"""Sessions that run an exported graph in ONNX Runtime."""
