"""Passes on Relax functions whose operators are calls of kernels: constants, sizes and memory."""
