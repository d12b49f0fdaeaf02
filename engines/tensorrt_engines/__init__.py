"""Sessions that build and run engines with TensorRT and TensorRT for RTX."""
