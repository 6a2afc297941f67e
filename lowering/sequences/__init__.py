"""Sequences of tensors whose length is known at run time, as lists of the TVM runtime."""
