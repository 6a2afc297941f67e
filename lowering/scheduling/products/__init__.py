"""Schedule rules of matrix products, of floats and of bytes, and what a sum of products is."""
