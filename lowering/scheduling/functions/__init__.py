"""Functions that kernels of a module share, such as register tiles of products."""
