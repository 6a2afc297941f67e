"""Contrib operators of onnxruntime (domain com.microsoft), decomposed into standard operators."""
