"""Declared shapes, corrected by proven ones."""

from __future__ import annotations

import pytest
from onnx import TensorProto, TypeProto, ValueInfoProto, helper

from looplift.rewrite.graph.declarations import with_proven_sizes, without_false_sizes


def _tensor(*sizes: int | None) -> TypeProto:
    return helper.make_tensor_type_proto(TensorProto.FLOAT, sizes)


def _sizes(kind: TypeProto) -> list[int | None]:
    dims = kind.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else None for d in dims]


@pytest.mark.parametrize("is_sequence", [False, True])
def test_false_sizes_go_and_others_stay(is_sequence: bool) -> None:
    kind = _tensor(1, 3, None)
    declared = helper.make_sequence_type_proto(kind) if is_sequence else kind
    info = without_false_sizes(helper.make_value_info("x", declared), (2, 3, 4))
    corrected = info.type.sequence_type.elem_type if is_sequence else info.type
    assert _sizes(corrected) == [None, 3, None]
    empty = without_false_sizes(helper.make_value_info("x", declared), (0, 3, 4))
    corrected = empty.type.sequence_type.elem_type if is_sequence else empty.type
    assert _sizes(corrected) == [1, 3, None]
    constant = without_false_sizes(
        helper.make_value_info("x", declared), (0, 3, 4), is_constant=True
    )
    other = constant.type.sequence_type.elem_type if is_sequence else constant.type
    assert _sizes(other) == [None, 3, None]
    assert corrected.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("declared", "proven", "sizes"),
    [
        ((None, 3), (2, "N"), [2, 3]),
        ((None, None), ("N", 4), [None, 4]),
        ((None,), (2, 3), [None]),
        ((None, None), (0, 4), [None, 4]),
        ((None,), None, [None]),
    ],
)
def test_proven_numbers_fill_open_sizes(
    declared: tuple[int | None, ...], proven: tuple[object, ...] | None, sizes: list[int | None]
) -> None:
    info: ValueInfoProto = helper.make_value_info("x", _tensor(*declared))
    assert _sizes(with_proven_sizes(info, proven).type) == sizes
    assert _sizes(info.type) == list(declared)
