"""Sequences: tuples where their length is known, lists of the TVM runtime where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..scalars import as_size
from ..sequences import loops as sequence_loops
from ..sequences import runtime as sequence_runtime
from ..sequences.runtime import to_list
from ..tvm_onnx import Converter, InputList
from ..values import Constant, ListValue, as_int, as_tensor, is_prim
from .broadcasting import known_dims
from .runtime_shapes import sizes_of
from .size_operators import SIZE_OPERATORS
from .tvm_converter import convert_as_tvm


def _construct(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceConstruct, see https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html."""
    return relax.Tuple([as_tensor(bb, value) for value in inputs])


def _empty(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceEmpty, see https://onnx.ai/onnx/operators/onnx__SequenceEmpty.html."""
    return relax.Tuple([])


def _length(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceLength, see https://onnx.ai/onnx/operators/onnx__SequenceLength.html."""
    sequence = inputs[0]
    if isinstance(sequence, relax.Tuple):
        return relax.const(len(sequence.fields), "int64")
    return relax.prim_value(sequence_runtime.length(bb, sequence))


def _at(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceAt, see https://onnx.ai/onnx/operators/onnx__SequenceAt.html."""
    sequence, position = inputs[0], inputs[1]
    known = _known_position(sequence, position)
    if known is not None:
        return _in_range(sequence, known, len(sequence.fields) - 1)
    sequence = to_list(bb, sequence)
    return sequence_runtime.at(bb, sequence, _position(bb, sequence, position))


def _insert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceInsert, see https://onnx.ai/onnx/operators/onnx__SequenceInsert.html."""
    sequence, tensor = inputs[0], bb.normalize(as_tensor(bb, inputs[1]))
    known = _known_position(sequence, inputs[2])
    if isinstance(sequence, relax.Tuple) and inputs[2] is None:
        return relax.Tuple([*sequence.fields, tensor])
    if known is not None:
        fields = list(sequence.fields)
        _check(known, len(fields), len(fields))
        fields.insert(known, tensor)
        return relax.Tuple(fields)
    sequence = to_list(bb, sequence)
    place = None if inputs[2] is None else _position(bb, sequence, inputs[2])
    return sequence_runtime.inserted(bb, sequence, place, tensor)


def _erase(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SequenceErase, see https://onnx.ai/onnx/operators/onnx__SequenceErase.html."""
    sequence = inputs[0]
    position = relax.const(-1, "int64") if inputs[1] is None else inputs[1]
    known = _known_position(sequence, position)
    if known is not None:
        fields = list(sequence.fields)
        _check(known, len(fields), len(fields) - 1)
        del fields[known]
        return relax.Tuple(fields)
    sequence = to_list(bb, sequence)
    return sequence_runtime.erased(bb, sequence, _position(bb, sequence, position))


def _concat(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """ConcatFromSequence, see https://onnx.ai/onnx/operators/onnx__ConcatFromSequence.html."""
    sequence, axis, new_axis = inputs[0], attrs["axis"], bool(attrs.get("new_axis", 0))
    if isinstance(sequence, ListValue):
        return sequence_loops.concatenated(bb, sequence, axis, new_axis=new_axis)
    if not sequence.fields:
        raise UnsupportedError("the sequence is empty")
    tensors = list(sequence.fields)
    if new_axis:
        tensors = [bb.normalize(relax.op.expand_dims(tensor, axis)) for tensor in tensors]
    return SIZE_OPERATORS["Concat"](bb, InputList(tensors), {**attrs, "axis": axis}, params)


def _split(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """SplitToSequence, see https://onnx.ai/onnx/operators/onnx__SplitToSequence.html.

    As in onnxruntime, `keepdims=0` also holds where `split` is the number 1.
    """
    data, split = as_tensor(bb, inputs[0]), inputs[1]
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the rank of the data is not known")
    axis = attrs.get("axis", 0) % len(dims)
    keepdims = bool(attrs.get("keepdims", 1))
    if split is not None and _rank(split) == 1:
        return _split_by_sizes(bb, data, axis, sizes_of(bb, split))
    size = tirx.IntImm("int64", 1) if split is None else _scalar(bb, split)
    if split is not None and not keepdims and as_int(size) is None:
        raise UnsupportedError("whether the pieces lose the axis depends on the size of a piece")
    squeeze = not keepdims and as_int(size) == 1
    extent, step = as_int(dims[axis]), as_int(size)
    if extent is None or step is None:
        return sequence_loops.pieces(bb, data, axis, size, squeeze=squeeze)
    sizes = [min(step, extent - start) for start in range(0, extent, step)]
    parts = _split_by_sizes(bb, data, axis, [tirx.IntImm("int64", size) for size in sizes])
    if not squeeze:
        return parts
    fields = [bb.normalize(relax.op.squeeze(part, [axis])) for part in parts.fields]
    return relax.Tuple(fields)


def _split_by_sizes(bb: Any, data: Any, axis: int, sizes: Sequence[Any]) -> Any:
    parts, start = [], tirx.IntImm("int64", 0)
    for size in sizes:
        parts.append(bb.emit(bb.call_te(_part, data, start, size, axis)))
        start = start + size
    return relax.Tuple(parts)


def _part(data: Any, start: Any, size: Any, axis: int) -> Any:
    shape = [*data.shape[:axis], size, *data.shape[axis + 1 :]]

    def element(*indices: Any) -> Any:
        return data(*indices[:axis], indices[axis] + start, *indices[axis + 1 :])

    return te.compute(shape, element, name="part")


def _rank(value: Any) -> int:
    return 0 if is_prim(value) else int(value.ty.ndim)


# --- Positions -----------------------------------------------------------------------------------


def _known_position(sequence: Any, position: Any) -> int | None:
    """The index into a tuple, counted from the front, if both are known."""
    if not isinstance(sequence, relax.Tuple) or not isinstance(position, Constant):
        return None
    index = int(position.value.numpy().item())
    return index + len(sequence.fields) if index < 0 else index


def _in_range(sequence: Any, index: int, last: int) -> Any:
    _check(index, len(sequence.fields), last)
    return sequence.fields[index]


def _check(index: int, length: int, last: int) -> None:
    if not 0 <= index <= last:
        raise UnsupportedError(f"position {index} lies outside of a sequence of {length} tensors")


def _position(bb: Any, sequence: ListValue, position: Any) -> Any:
    """A position in a list counted from the front, as a prim expression."""
    number = _known_number(position)
    if number is not None and number >= 0:
        return tirx.IntImm("int64", number)
    length = sequence_runtime.length(bb, sequence)
    if number is not None:
        return length + number
    scalar = _tensor(bb, position)
    from_end = bb.normalize(relax.op.add(scalar, as_tensor(bb, relax.prim_value(length))))
    is_negative = relax.op.less(scalar, relax.const(0, "int64"))
    return as_size(bb, bb.emit(relax.op.where(is_negative, from_end, scalar)))


def _scalar(bb: Any, value: Any) -> Any:
    """A number that is not negative, as a prim expression."""
    number = _known_number(value)
    if number is not None:
        return tirx.IntImm("int64", number)
    return value if is_prim(value) else as_size(bb, _tensor(bb, value))


def _known_number(value: Any) -> int | None:
    if isinstance(value, Constant):
        return int(value.value.numpy().item())
    return as_int(value) if is_prim(value) else None


def _tensor(bb: Any, value: Any) -> Any:
    scalar = bb.normalize(relax.op.reshape(as_tensor(bb, value), ()))
    return bb.normalize(relax.op.astype(scalar, "int64"))


# --- Optional values -----------------------------------------------------------------------------


def _on_list(op_type: str, of_list: Callable[[Any], Any]) -> Converter:
    """TVM's converter, except for lists and absent inputs, which TVM does not know."""

    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        value = inputs[0]
        if value is None or isinstance(value, ListValue):
            return of_list(value)
        return convert_as_tvm(op_type, bb, inputs, attrs, params)

    return convert


def _itself(value: Any) -> Any:
    if value is None:
        raise UnsupportedError("there is no value")
    return value


def _is_there(value: Any) -> Any:
    return relax.const(value is not None, "bool")


SEQUENCES = MappingProxyType[str, Converter](
    {
        "ConcatFromSequence": _concat,
        "Identity": _on_list("Identity", _itself),
        "OptionalGetElement": _on_list("OptionalGetElement", _itself),
        "OptionalHasElement": _on_list("OptionalHasElement", _is_there),
        "SequenceAt": _at,
        "SequenceConstruct": _construct,
        "SequenceEmpty": _empty,
        "SequenceErase": _erase,
        "SequenceInsert": _insert,
        "SequenceLength": _length,
        "SplitToSequence": _split,
    }
)
"""All of the standard domain."""
