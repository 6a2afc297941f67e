"""The converters of ONNX operators without bodies; importing the package fills the registry."""

from . import (  # noqa: F401  (each registers its converters)
    accumulation,
    casts,
    convolution,
    creation,
    detection,
    elementwise,
    extremes,
    fourier,
    indexing,
    matmul,
    normalization,
    padding,
    recurrent_operator,
    reductions,
    reshaping,
    resize,
    sequences,
    slicing,
)
from .registry import Accepts, Converter, ConverterContext, find

__all__ = ["Accepts", "Converter", "ConverterContext", "find"]
