"""GatherBlockQuantized against onnxruntime: bits, zero points, axes, and indices outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from looplift.rewrite.errors import UnsupportedError

from .inputs import Load

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
ROWS, BLOCK = 5, 16


def _model(index_rank: int, weights: dict[str, Any], **attributes: Any) -> bytes:
    """A look-up in a constant table, for indices of unknown sizes."""
    inputs = ["d", "i", "s", "z"][: 3 + ("z" in weights)]
    attributes = {"block_size": BLOCK, **attributes}
    node = helper.make_node(
        "GatherBlockQuantized", inputs, ["y"], domain="com.microsoft", **attributes
    )
    sizes = [f"n{axis}" for axis in range(index_rank)]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, sizes)],
        [helper.make_tensor_value_info("y", _type(weights["s"]), None)],
        [
            value if hasattr(value, "data_type") else numpy_helper.from_array(value, name)
            for name, value in weights.items()
        ],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    serialized: bytes = model.SerializeToString()
    return serialized


def _type(scales: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(scales.dtype)


def _bytes(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def _scales(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.uniform(0.01, 0.1, shape).astype(dtype)


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(
    ("bits", "width"),
    [(4, 48), (4, 40), (4, 8), (8, 32), (8, 17), (2, 64), (2, 20)],
)
def test_tables_of_bytes(imported: Load, bits: int, width: int, has_zeros: bool) -> None:
    """The last block may be shorter, and so may the last byte of zero points."""
    blocks = -(-width // BLOCK)
    weights = {"d": _bytes(ROWS, width * bits // 8), "s": _scales(ROWS, blocks)}
    if has_zeros:
        weights["z"] = _bytes(ROWS, -(-blocks * bits // 8))
    model = imported(_model(2, weights, bits=bits, gather_axis=0, quantize_axis=1))
    for shape in ((2, 3), (1, 1), (0, 4)):
        model.check(RNG.integers(-ROWS, ROWS, shape))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_types_of_scales(imported: Load, dtype: Any) -> None:
    weights = {"d": _bytes(ROWS, 8), "s": _scales(ROWS, 1, dtype=dtype)}
    imported(_model(1, weights)).check(np.array([1, 4, -2]))


def test_indices_outside_of_the_table_give_zeros(imported: Load) -> None:
    weights = {"d": _bytes(ROWS, 16), "s": _scales(ROWS, 2)}
    model = imported(_model(1, weights))
    model.check(np.array([ROWS, -ROWS - 1, 1 << 40, -(1 << 62), 2]))


@pytest.mark.parametrize("kind", [TensorProto.UINT4, TensorProto.INT4])
@pytest.mark.parametrize(("gathered", "quantised"), [(0, 1), (1, 0), (0, 2), (2, -2)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_tables_of_four_bits(
    imported: Load, kind: int, gathered: int, quantised: int, has_zeros: bool
) -> None:
    """Each axis may have the blocks; without zero points, they are 0."""
    shape = [5, 18, 3]
    counts = list(shape)
    counts[quantised] = -(-shape[quantised] // BLOCK)

    def small(name: str, sizes: list[int]) -> Any:
        low = 0 if kind == TensorProto.UINT4 else -8
        numbers = RNG.integers(low, low + 16, sizes)
        return helper.make_tensor(name, kind, sizes, numbers.ravel().tolist())

    weights = {"d": small("d", shape), "s": _scales(*counts)}
    if has_zeros:
        weights["z"] = small("z", counts)
    model = imported(_model(1, weights, gather_axis=gathered, quantize_axis=quantised))
    for count in (4, 1, 0):
        model.check(RNG.integers(-shape[gathered], shape[gathered], count))


@pytest.mark.parametrize(
    ("attributes", "shape", "reason"),
    [
        ({"bits": 3}, (ROWS, 8), "`bits` is 3"),
        ({"block_size": 0}, (ROWS, 8), "`block_size` is 0"),
        ({"quantize_axis": 0}, (ROWS, 8), "along the axis that is looked up"),
        ({"quantize_axis": 1}, (ROWS, 8, 8), "not along its last axis"),
        ({"quantize_axis": 2}, (ROWS, 8), "rank 2"),
    ],
)
def test_what_is_refused(
    imported: Load, attributes: dict[str, int], shape: tuple[int, ...], reason: str
) -> None:
    weights = {"d": _bytes(*shape), "s": _scales(*(1,) * len(shape))}
    with pytest.raises(UnsupportedError, match=reason):
        imported(_model(1, weights, **attributes))


def test_a_table_of_signed_bytes_is_refused(imported: Load) -> None:
    weights = {"d": _bytes(ROWS, 8).astype(np.int8), "s": _scales(ROWS, 1)}
    with pytest.raises(UnsupportedError, match="consists of int8"):
        imported(_model(1, weights))
