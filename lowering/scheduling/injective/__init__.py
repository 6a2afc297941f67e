"""Schedule rules of kernels that compute each element by itself: elementwise, layout, copies."""
