"""The layout of each image between kernels: channels first or last."""
