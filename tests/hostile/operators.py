"""Hostile operands and attributes of operators that looplift decomposes or translates itself.

`test_lowering.py` imports the models of those that it translates, which takes a process with TVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import TensorProto, helper

from .case import REWRITE, VERIFIED, Case, file
from .case import model as model_of

_FLOAT, _HALF = TensorProto.FLOAT, TensorProto.FLOAT16
_INT8, _UINT8, _INT32, _INT64 = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
)
_NAN, _INFINITE = float("nan"), float("inf")
Declared = tuple[int, "list[Any] | None"]
"""An element type and a shape."""


def cases() -> Iterator[Case]:
    yield from _contrib()
    yield from _damaged()
    yield from _unfitting()


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models for the import, by name."""
    yield from _attention()
    yield from _linear_attention()
    yield from _quantized()
    yield from _narrow()
    yield from _of_many_axes()
    yield from _without_inputs()


def _one(
    op: str,
    inputs: list[Declared | None],
    outputs: int = 1,
    domain: str = "",
    opset: int = 21,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node."""
    names = [f"x{k}" if each else "" for k, each in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(name, *each)
        for name, each in zip(names, inputs)
        if each is not None
    ]
    element = next((each[0] for each in inputs if each), _FLOAT)
    element = _FLOAT if op == "DequantizeLinear" else element
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info(name, element, None) for name in results]
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _case(
    name: str,
    model: onnx.ModelProto,
    arguments: tuple[str, ...],
    status: int = 0,
    words: tuple[str, ...] = (),
) -> Case:
    return Case(name, file(model), arguments, status, words)


# --- operators of com.microsoft ------------------------------------------------------------------

_MS = "com.microsoft"
_X: Declared = (_FLOAT, ["B", "S", 8])
_V: Declared = (_FLOAT, [8])


def _contrib() -> Iterator[Case]:
    for heads in (0, -1, 3, 2**31, 2**62):
        model = _one("MultiHeadAttention", [_X, _X, _X], domain=_MS, num_heads=heads)
        yield _case(f"MultiHeadAttention of {heads} heads", model, REWRITE)
        model = _one(
            "Attention", [_X, (_FLOAT, [8, 24]), (_FLOAT, [24])], domain=_MS, num_heads=heads
        )
        yield _case(f"com.microsoft.Attention of {heads} heads", model, REWRITE)
    for sizes in ([1, 2], [0, 0, 0], [-8, -8, -8], [8, 8, 2**62], [8] * 50):
        model = _one(
            "Attention",
            [_X, (_FLOAT, [8, 24]), (_FLOAT, [24])],
            domain=_MS,
            num_heads=2,
            qkv_hidden_sizes=sizes,
        )
        yield _case(f"Attention with hidden sizes {sizes[:3]}", model, REWRITE)
    for name, value in (("num_heads", "2"), ("num_heads", [2, 2]), ("num_heads", 2.0)):
        given: dict[str, Any] = {name: value}
        model = _one("MultiHeadAttention", [_X, _X, _X], domain=_MS, **given)
        yield _case(f"{name} {value!r} of MultiHeadAttention", model, REWRITE, 2, ("takes INT",))
    yield _case(
        "MultiHeadAttention without heads",
        _one("MultiHeadAttention", [_X] * 3, domain=_MS),
        REWRITE,
        2,
        ("lacks its attribute 'num_heads'",),
    )
    for mask in ([], ["B"], ["B", 1, 1, 1, 1, 1], ["B", "S", "S", 7]):
        inputs: list[Declared | None] = [_X, _X, _X, None, (_INT32, mask)]
        model = _one("MultiHeadAttention", inputs, domain=_MS, num_heads=2)
        yield _case(f"MultiHeadAttention with a mask of rank {len(mask)}", model, REWRITE)
    image: Declared = (_FLOAT, [1, 2, 5, 5])
    for activation in ("", "Nosuch", "Relu" * 9999, "HardSigmoid", "\x1b[2J"):
        model = _one(
            "FusedConv", [image, (_FLOAT, [2, 2, 3, 3])], domain=_MS, activation=activation
        )
        yield _case(f"FusedConv with {activation[:10]!r}", model, REWRITE)
    for params in ([_NAN], [1.0] * 100):
        model = _one(
            "FusedConv",
            [image, (_FLOAT, [2, 2, 3, 3])],
            domain=_MS,
            activation="HardSigmoid",
            activation_params=params,
        )
        yield _case(f"FusedConv with {len(params)} parameters", model, REWRITE)
    for alpha in (_NAN, _INFINITE, 0.0, 1e-45):
        model = _one("FusedMatMul", [(_FLOAT, [2, 3]), (_FLOAT, [3, 2])], domain=_MS, alpha=alpha)
        yield _case(f"FusedMatMul times {alpha}", model, VERIFIED)
    for shape in ([], [3], [0], [2, 0]):
        model = _one("FusedMatMul", [(_FLOAT, shape)] * 2, domain=_MS, transA=1, transBatchB=1)
        yield _case(f"FusedMatMul of rank {shape}", model, REWRITE)
    for epsilon in (_NAN, -1.0, _INFINITE):
        model = _one("SkipLayerNormalization", [_X, _X, _V], domain=_MS, epsilon=epsilon)
        yield _case(f"SkipLayerNormalization with epsilon {epsilon}", model, REWRITE)
    model = _one("SkipLayerNormalization", [_X, (_FLOAT, []), (_FLOAT, [])], domain=_MS)
    yield _case("SkipLayerNormalization of scalars", model, REWRITE)
    yield _case("Gelu of integers", _one("Gelu", [(_INT64, ["N"])], domain=_MS), REWRITE)
    for op, count, attribute_or_input in (
        ("FastGelu", 0, "input 'X'"),
        ("EmbedLayerNormalization", 1, "input 'word_embedding'"),
        ("MultiHeadAttention", 40, "attribute 'num_heads'"),
        ("FusedGemm", 1, "input 'B'"),
    ):
        model = _one(op, [_X] * count, domain=_MS)
        words = (f"{op} lacks its {attribute_or_input}",)
        yield _case(f"{op} of {count} operands", model, REWRITE, 2, words)
    for op in ("FastGelu", "EmbedLayerNormalization", "FusedGemm"):
        words = (f"{op} has 40 inputs",)
        yield _case(f"{op} of 40 operands", _one(op, [_X] * 40, domain=_MS), REWRITE, 2, words)


# --- Attention -----------------------------------------------------------------------------------

_Q: Declared = (_FLOAT, ["B", 2, "S", 4])


def _attention() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, value in (
        ("q_num_heads", 0),
        ("kv_num_heads", -1),
        ("q_num_heads", 2**40),
        ("is_causal", 7),
        ("qk_matmul_output_mode", 9),
        ("softmax_precision", 999),
        ("softcap", _NAN),
        ("softcap", -1.0),
        ("scale", 0.0),
        ("scale", _INFINITE),
    ):
        given: dict[str, Any] = {name: value}
        model = _one("Attention", [_Q] * 3, opset=23, **given)
        yield f"Attention with {name} {value}", model
        flat: Declared = (_FLOAT, ["B", "S", 8])
        model = _one("Attention", [flat] * 3, opset=23, **given)
        yield f"Attention of rank 3 with {name} {value}", model
    for rank in (0, 1, 2, 5):
        model = _one("Attention", [(_FLOAT, [2] * rank)] * 3, opset=23)
        yield f"Attention of rank {rank}", model
    for extra in ([(_INT8, ["S", "S"])], [None, _Q], [None, None, _Q], [(_FLOAT, [1] * 7)]):
        model = _one("Attention", [_Q, _Q, _Q, *extra], opset=23)
        yield f"Attention with {extra}", model


# --- LinearAttention -----------------------------------------------------------------------------


def _linear_attention() -> Iterator[tuple[str, onnx.ModelProto]]:
    flat: Declared = (_FLOAT, ["B", "S", 8])
    decay: Declared = (_FLOAT, ["B", "S", 2])
    state: Declared = (_FLOAT, ["B", 2, 4, 4])
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2}
    for name, value in (
        ("q_num_heads", 0),
        ("q_num_heads", 3),
        ("q_num_heads", 2**40),
        ("kv_num_heads", -1),
        ("kv_num_heads", 4),
        ("update_rule", ""),
        ("update_rule", "nosuch"),
        ("update_rule", "\x1b[2J"),
        ("update_rule", "gated"),
        ("update_rule", "delta"),
        ("update_rule", 7),
        ("scale", _NAN),
        ("scale", _INFINITE),
        ("chunk_size", 0),
        ("chunk_size", -1),
        ("chunk_size", 2**40),
    ):
        given: dict[str, Any] = {**heads, name: value}
        yield (
            f"LinearAttention with {name} {value!r}",
            _one("LinearAttention", [flat] * 3, 2, opset=27, **given),
        )
    for shape in ([], [8], ["B", 8], ["B", "S", 7], [0, 0, 0], ["B", "S", 2, 4, 1]):
        inputs: list[Declared | None] = [(_FLOAT, shape)] * 3
        model = _one("LinearAttention", inputs, 2, opset=27, **heads)
        yield f"LinearAttention of the shape {shape}", model
    extras: list[list[Declared | None]] = [
        [(_FLOAT, [2, 2])],
        [(_INT64, ["B", 2, 4, 4])],
        [state, (_FLOAT, [7])],
        [None, decay, (_FLOAT, ["B", "S", 99])],
        [state] * 9,
    ]
    for rule in ("gated", "delta", "gated_delta"):
        for extra in extras:
            inputs = [flat, flat, flat, *extra]
            model = _one("LinearAttention", inputs, 2, opset=27, update_rule=rule, **heads)
            yield f"LinearAttention, {rule}, with {extra[:3]}", model
    yield "LinearAttention of nothing", _one("LinearAttention", [], 2, opset=27, **heads)


# --- quantised operators -------------------------------------------------------------------------


def _quantized() -> Iterator[tuple[str, onnx.ModelProto]]:
    matrix: Declared = (_UINT8, [2, 3])
    scale: Declared = (_FLOAT, [])
    for zero in ([], [1], [5], [2, 2], [0]):
        inputs: list[Declared | None] = [
            matrix,
            scale,
            (_UINT8, zero),
            (_UINT8, [3, 2]),
            scale,
            (_UINT8, []),
            scale,
            (_UINT8, []),
        ]
        yield f"QLinearMatMul with a zero point of {zero}", _one("QLinearMatMul", inputs)
        model = _one("MatMulInteger", [matrix, (_UINT8, [3, 2]), (_UINT8, zero)])
        yield f"MatMulInteger with a zero point of {zero}", model
    for axis in (-9, 2, 7, 2**40):
        model = _one("DequantizeLinear", [matrix, (_FLOAT, [3]), (_UINT8, [3])], axis=axis)
        yield f"DequantizeLinear along axis {axis}", model
    for block in (-1, 2, 3, 7, 2**40):
        model = _one("DequantizeLinear", [matrix, (_FLOAT, [2, 2])], axis=1, block_size=block)
        yield f"DequantizeLinear in blocks of {block}", model
    for kind in (-1, 0, 8, 999):
        model = _one("QuantizeLinear", [(_FLOAT, [2, 3]), scale], output_dtype=kind)
        yield f"QuantizeLinear to type {kind}", model
    for sizes in ([], [5], [2, 3, 4]):
        model = _one("QuantizeLinear", [(_FLOAT, [2, 3]), (_FLOAT, sizes)])
        yield f"QuantizeLinear with scales of {sizes}", model
    model = _one("ConvInteger", [(_UINT8, [1, 2, 5, 5]), (_UINT8, [2, 7, 3, 3])])
    yield "ConvInteger of other channels", model
    model = _one("DynamicQuantizeLinear", [(_FLOAT, [0])], 3)
    yield "DynamicQuantizeLinear of nothing", model


# --- types of less than a byte -------------------------------------------------------------------

_NARROW = ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT8E8M0")


def _narrow() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name in _NARROW:
        element = getattr(TensorProto, name, None)
        if element is None:
            continue
        for size, data in (
            (5, b"\x12"),
            (5, b"\x12" * 99),
            (0, b"\x12"),
            (2**40, b"\x12"),
            (3, b""),
        ):
            yield f"{size} of {name} in {len(data)} bytes", _stored(element, [size], data)
        model = _stored(element, [2], b"")
        model.graph.initializer[0].ClearField("raw_data")
        model.graph.initializer[0].int32_data.extend([-(2**31), 2**31 - 1])
        yield f"numbers beyond {name}", model
        model = _one("Cast", [(_FLOAT, ["N"])], opset=25, to=element)
        model.graph.output[0].type.tensor_type.elem_type = element
        yield f"a cast to {name}", model


def _stored(element: int, dims: list[int], data: bytes) -> onnx.ModelProto:
    """A constant of a type, cast to a float."""
    model = _one("Cast", [(element, dims)], opset=25, to=_FLOAT)
    del model.graph.input[:]
    model.graph.initializer.add(name="x0", data_type=element, dims=dims, raw_data=data)
    model.graph.output[0].type.tensor_type.elem_type = _FLOAT
    model.ir_version = 13
    return model


def _of_many_axes() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Shapes that are vectors of billions of elements."""
    many: Declared = (_INT64, [2**31])
    cases: dict[str, list[Declared | None]] = {
        "Reshape": [(_FLOAT, [2]), many],
        "Expand": [(_FLOAT, [2]), many],
        "ConstantOfShape": [many],
        "AffineGrid": [(_FLOAT, ["N", 2, 3]), many],
    }
    for op, inputs in cases.items():
        yield f"{op} to 2^31 axes", _one(op, inputs)


def _without_inputs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Omitted inputs, also of models that are refused for another reason first."""
    for name, omitted in {
        "Concat": _one("Concat", [None, (_FLOAT, [2])], axis=0),
        "Max": _one("Max", [None, (_FLOAT, [2])]),
        "Sum": _one("Sum", [(_FLOAT, [2]), None, (_FLOAT, [2])]),
    }.items():
        yield f"{name} with an omitted input", omitted
        other = onnx.ModelProto()
        other.CopyFrom(omitted)
        other.graph.node.insert(0, helper.make_node("Constant", [], ["c"]))
        yield f"{name} with an omitted input, and a Constant without a value", other


# --- damaged constants ---------------------------------------------------------------------------


def _unfitting() -> Iterator[Case]:
    """Attributes and constants that no run could use."""
    image: Declared = (_FLOAT, [1, 4, 5, 5])
    windows: list[Declared | None] = [image, (_FLOAT, [4, 4, 3, 3])]
    for name, model in {
        "strides of 0": _one("Conv", windows, strides=[0, 0]),
        "too few pads": _one("Conv", windows, kernel_shape=[3, 3], pads=[0, 0, 0]),
        "too few dilations": _one("MaxPool", [image], kernel_shape=[3, 3], dilations=[1]),
        "too few additional sizes": _one("ConvTranspose", windows, output_padding=[0]),
        "blocks of 0": _one("DepthToSpace", [image], blocksize=0),
    }.items():
        words = ("The attributes or inputs of", "do not fit")
        yield _case(name, model, REWRITE, 2, words)
    for scale in (_NAN, _INFINITE):
        model = _one("Resize", [image, None, (_FLOAT, [4])], mode="linear")
        constant = model.graph.input.pop()
        scales = helper.make_tensor(constant.name, _FLOAT, [4], [1.0, 1.0, scale, 2.0])
        model.graph.initializer.append(scales)
        yield _case(f"a scale of {scale}", model, REWRITE, 2, ("do not fit",))
    model = _one("Unsqueeze", [image, (_INT64, [2])])
    constant = model.graph.input.pop()
    model.graph.initializer.append(helper.make_tensor(constant.name, _INT64, [2], [0, 0]))
    yield _case("an axis that is given twice", model, VERIFIED, 2)


def _damaged() -> Iterator[Case]:
    """Constants with more or fewer bytes than their shape takes, read by rules, verification or the
    search for inputs.
    """
    for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"):
        for size, data in ((5, b"\x12"), (5, b"\x12" * 99), (2**40, b"\x12")):
            model = _stored(getattr(TensorProto, name), [size], data)
            words = ("do not fit",)
            yield _case(f"{size} of {name} in {len(data)} bytes", model, REWRITE, 2, words)
    for op, opset in (("Reshape", 21), ("Squeeze", 21), ("ReduceSum", 21), ("Tile", 21)):
        model = _one(op, [(_FLOAT, [1, 2]), (_INT64, [2])], opset=opset)
        del model.graph.input[1]
        model.graph.initializer.add(name="x1", data_type=_INT64, dims=[2], raw_data=b"12345")
        yield _case(f"{op} with a damaged vector", model, VERIFIED, 2)
    text = "g (int64 n, float[2] x) => (bool b, float[2] y) { b = Equal(n, k) y = Neg(x) }"
    model = model_of(text)
    model.graph.initializer.add(name="k", data_type=_INT64, dims=[], raw_data=b"123")
    yield _case("a comparison with a damaged number", model, VERIFIED, 2)
