"""Which converter an operator has: looplift's own where there is one, otherwise TVM's."""

from __future__ import annotations

import functools
from types import MappingProxyType

from ..tvm_onnx import Converter, converter, operators
from .accumulation import SUMMING, summing_widely
from .casts import convert_cast_like
from .constant import convert_constant
from .convolution import convert_conv, convert_conv_transpose, convert_lp_pool, convert_max_pool
from .depth import convert_space_to_depth
from .dropout import convert_dropout
from .elementwise import ELEMENTWISE
from .extremes import POSITIONS
from .fourier import convert_dft, convert_stft
from .logic import LOGIC
from .normalization import (
    convert_batch_normalization,
    convert_layer_normalization,
    convert_lp_normalization,
    convert_rms_normalization,
)
from .one_hot import convert_one_hot
from .padding import convert_pad
from .products import convert_gemm, convert_matmul
from .ranges import convert_range
from .recurrent import convert_gru, convert_lstm, convert_rnn
from .reductions import REDUCTIONS
from .regions import convert_roi_align
from .resize import convert_resize, convert_upsample
from .reverse_sequence import convert_reverse_sequence
from .runtime_shapes import convert_constant_of_shape, convert_expand, convert_reshape
from .scatter import convert_scatter_nd
from .selection import convert_split, convert_top_k
from .sequences import SEQUENCES
from .size_operators import SIZE_OPERATORS
from .slicing import convert_slice
from .squeeze import convert_squeeze, convert_unsqueeze
from .suppression import convert_non_max_suppression

OPERATORS = MappingProxyType[tuple[str, str], Converter](
    {
        ("", "BatchNormalization"): convert_batch_normalization,
        ("", "CastLike"): convert_cast_like,
        ("", "Constant"): convert_constant,
        ("", "ConstantOfShape"): convert_constant_of_shape,
        ("", "Conv"): convert_conv,
        ("", "ConvTranspose"): convert_conv_transpose,
        ("", "DFT"): convert_dft,
        ("", "Dropout"): convert_dropout,
        ("", "Expand"): convert_expand,
        ("", "GRU"): convert_gru,
        ("", "Gemm"): convert_gemm,
        ("", "LSTM"): convert_lstm,
        ("", "LayerNormalization"): convert_layer_normalization,
        ("", "LpPool"): convert_lp_pool,
        ("", "LpNormalization"): convert_lp_normalization,
        ("", "MatMul"): convert_matmul,
        ("", "MaxPool"): convert_max_pool,
        ("", "NonMaxSuppression"): convert_non_max_suppression,
        ("", "OneHot"): convert_one_hot,
        ("", "Pad"): convert_pad,
        ("", "RMSNormalization"): convert_rms_normalization,
        ("", "RNN"): convert_rnn,
        ("", "Range"): convert_range,
        ("", "Reshape"): convert_reshape,
        ("", "Resize"): convert_resize,
        ("", "ReverseSequence"): convert_reverse_sequence,
        ("", "RoiAlign"): convert_roi_align,
        ("", "STFT"): convert_stft,
        ("", "ScatterND"): convert_scatter_nd,
        ("", "Slice"): convert_slice,
        ("", "SpaceToDepth"): convert_space_to_depth,
        ("", "Split"): convert_split,
        ("", "Squeeze"): convert_squeeze,
        ("", "TopK"): convert_top_k,
        ("", "Unsqueeze"): convert_unsqueeze,
        ("", "Upsample"): convert_upsample,
        **{("", op_type): convert for op_type, convert in ELEMENTWISE.items()},
        **{("", op_type): convert for op_type, convert in LOGIC.items()},
        **{("", op_type): convert for op_type, convert in POSITIONS.items()},
        **{("", op_type): convert for op_type, convert in REDUCTIONS.items()},
        **{("", op_type): convert for op_type, convert in SEQUENCES.items()},
        **{("", op_type): convert for op_type, convert in SIZE_OPERATORS.items()},
    }
)
"""Converters that TVM lacks or that correct TVM's, by domain and operator."""

DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""The domains whose operators TVM converts; its importer knows names only."""

_OF_MICROSOFT = frozenset({"Attention"})
"""Names under which TVM converts an operator of com.microsoft, not the standard one."""

TAKES_SIZES = frozenset(
    {
        "CastLike", "ConstantOfShape", "Expand", "Identity", "Pad", "Reshape", "Resize", "Shape",
        "Slice", "Split", "Squeeze", "TopK", "Where", *SIZE_OPERATORS,
    }
)  # fmt: skip
"""Operators whose converters take a vector of sizes for a tensor of them."""

TAKES_SCALARS = frozenset(
    {
        "Identity", "Range", "SequenceAt", "SequenceErase", "SequenceInsert", "Slice",
        "SplitToSequence", "Unsqueeze", *SIZE_OPERATORS,
    }
)  # fmt: skip
"""Operators whose converters take a scalar computed from sizes for a tensor of rank 0."""

TAKES_NARROW_SIZES = frozenset(
    {"Identity", "Range", "Slice", "Squeeze", "Unsqueeze", *SIZE_OPERATORS}
)
"""Operators whose converters take sizes in other types than int64."""

TAKES_ANY_RANK = frozenset(
    {
        "Identity", "Optional", "OptionalGetElement", "OptionalHasElement",
        "SequenceConstruct", "SequenceInsert", "Shape",
    }
)  # fmt: skip
"""Operators that can be compiled for tensors of unknown rank."""


@functools.cache
def find(domain: str, op_type: str, opset: int) -> Converter | None:
    """The converter of an operator, if there is one. `opset` is that of the standard domain."""
    standard = "" if domain == "ai.onnx" else domain
    found = OPERATORS.get((standard, op_type))
    if found is None and domain in DOMAINS and op_type in operators():
        found = None if not standard and op_type in _OF_MICROSOFT else converter(op_type, opset)
    if found is not None and not standard and op_type in SUMMING:
        return summing_widely(found)
    return found
