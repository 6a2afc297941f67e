"""From operators to cheaper operators, and from operators to kernels."""
