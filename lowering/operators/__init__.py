"""The converters of ONNX operators without bodies; importing the package fills the registry."""

from . import (  # noqa: F401  (each registers its converters)
    accumulation,
    block_quantized,
    casts,
    convolution,
    creation,
    cumulative,
    detection,
    determinant,
    distances,
    einsum,
    elementwise,
    extremes,
    fourier,
    grid_sample,
    indexing,
    inverse,
    machine_learning,
    matmul,
    max_positions,
    nonzero,
    normalization,
    padding,
    quantization,
    random,
    recurrent_operator,
    reductions,
    reshaping,
    resize,
    sampling,
    sequences,
    slicing,
    tree_ensembles,
)
from .registry import Accepts, Converter, ConverterContext, find

__all__ = ["Accepts", "Converter", "ConverterContext", "find"]
