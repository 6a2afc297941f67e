"""Passes on scheduled kernels, before LLVM: checks of arguments, scratch buffers and launches."""
