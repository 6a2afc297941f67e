"""Models on onnxruntime: made-up inputs, runs, comparisons."""
