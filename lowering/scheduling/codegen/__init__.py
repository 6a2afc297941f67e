"""Passes on scheduled kernels, before LLVM: arguments, scratch buffers, loop bodies, threads."""
