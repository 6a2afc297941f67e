"""From Relax operators to fast kernels: looplift's pipeline and its schedule."""
