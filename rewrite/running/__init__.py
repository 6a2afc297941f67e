"""Runs models on onnxruntime: generates inputs, runs models, compares their outputs."""
