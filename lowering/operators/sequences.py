"""Sequences and optionals. A sequence of known length is a tuple; any other is a runtime list."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..scalars import as_size
from ..sequences import lists, loops
from ..sequences.lists import to_list
from ..values import Constant, ListValue, Value, as_int, as_tensor, is_prim
from .broadcasting import ONE, dims_of
from .registry import Accepts, ConverterContext, converts
from .sizes import sizes_of
from .slicing import concat, split_by_sizes


@converts("SequenceConstruct", accepts=Accepts.ANY_RANK)
def sequence_construct(ctx: ConverterContext) -> Value:
    """SequenceConstruct, see https://onnx.ai/onnx/operators/onnx__SequenceConstruct.html."""
    return relax.Tuple(ctx.tensors())


@converts("SequenceEmpty")
def sequence_empty(ctx: ConverterContext) -> Value:
    """SequenceEmpty, see https://onnx.ai/onnx/operators/onnx__SequenceEmpty.html."""
    return relax.Tuple([])


@converts("SequenceLength")
def sequence_length(ctx: ConverterContext) -> Value:
    """SequenceLength, see https://onnx.ai/onnx/operators/onnx__SequenceLength.html."""
    sequence = ctx.inputs[0]
    if isinstance(sequence, relax.Tuple):
        return relax.const(len(sequence.fields), "int64")
    return relax.prim_value(lists.length(ctx.bb, sequence))


@converts("SequenceAt", accepts=Accepts.SCALARS)
def sequence_at(ctx: ConverterContext) -> Value:
    """SequenceAt, see https://onnx.ai/onnx/operators/onnx__SequenceAt.html."""
    sequence, position = ctx.inputs[0], ctx.inputs[1]
    known = _known_position(sequence, position)
    if known is not None:
        _check_position(known, sequence, last=len(sequence.fields) - 1)
        return sequence.fields[known]
    sequence = to_list(ctx.bb, sequence)
    return lists.get(ctx.bb, sequence, _position(ctx.bb, sequence, position))


@converts("SequenceInsert", accepts=Accepts.SCALARS | Accepts.ANY_RANK)
def sequence_insert(ctx: ConverterContext) -> Value:
    """SequenceInsert, see https://onnx.ai/onnx/operators/onnx__SequenceInsert.html."""
    sequence, tensor, position = ctx.inputs[0], ctx.bb.normalize(ctx.tensor(1)), ctx.inputs[2]
    known = _known_position(sequence, position)
    if isinstance(sequence, relax.Tuple) and position is None:
        return relax.Tuple([*sequence.fields, tensor])
    if known is not None:
        _check_position(known, sequence, last=len(sequence.fields))
        fields = list(sequence.fields)
        fields.insert(known, tensor)
        return relax.Tuple(fields)
    sequence = to_list(ctx.bb, sequence)
    place = None if position is None else _position(ctx.bb, sequence, position)
    return lists.insert(ctx.bb, sequence, place, tensor)


@converts("SequenceErase", accepts=Accepts.SCALARS)
def sequence_erase(ctx: ConverterContext) -> Value:
    """SequenceErase, see https://onnx.ai/onnx/operators/onnx__SequenceErase.html."""
    sequence = ctx.inputs[0]
    position = relax.const(-1, "int64") if ctx.inputs[1] is None else ctx.inputs[1]
    known = _known_position(sequence, position)
    if known is not None:
        _check_position(known, sequence, last=len(sequence.fields) - 1)
        fields = list(sequence.fields)
        del fields[known]
        return relax.Tuple(fields)
    sequence = to_list(ctx.bb, sequence)
    return lists.erase(ctx.bb, sequence, _position(ctx.bb, sequence, position))


@converts("ConcatFromSequence")
def concat_from_sequence(ctx: ConverterContext) -> Value:
    """ConcatFromSequence, see https://onnx.ai/onnx/operators/onnx__ConcatFromSequence.html."""
    if ctx.attr("new_axis", 0) not in (0, 1):
        raise UnsupportedError(f"new_axis is {ctx.attr('new_axis')}, and must be 0 or 1")
    sequence, axis, new_axis = ctx.inputs[0], ctx.attrs["axis"], bool(ctx.attr("new_axis", 0))
    if isinstance(sequence, ListValue):
        return loops.concatenate(ctx.bb, sequence, axis, new_axis=new_axis)
    if not sequence.fields:
        raise UnsupportedError("the sequence is empty")
    tensors = list(sequence.fields)
    if new_axis:
        tensors = [ctx.bb.normalize(relax.op.expand_dims(tensor, axis)) for tensor in tensors]
    return concat(ctx.derive("Concat", tensors))


@converts("SplitToSequence", accepts=Accepts.SCALARS)
def split_to_sequence(ctx: ConverterContext) -> Value:
    """SplitToSequence, see https://onnx.ai/onnx/operators/onnx__SplitToSequence.html.

    As in onnxruntime, `keepdims=0` also applies where `split` is the scalar 1.
    """
    data, given = ctx.tensor(0), ctx.inputs[1]
    dims = dims_of(data, "data")
    axis = ctx.attr("axis", 0) % len(dims)
    keepdims = bool(ctx.attr("keepdims", 1))
    if given is not None and not is_prim(given) and given.ty.ndim == 1:
        return relax.Tuple(split_by_sizes(ctx, data, axis, sizes_of(ctx.bb, given)))
    size = ONE if given is None else _scalar(ctx.bb, given)
    if given is not None and not keepdims and as_int(size) is None:
        raise UnsupportedError("with keepdims=0, `split` must be constant: it decides the rank")
    squeeze = not keepdims and as_int(size) == 1
    extent, length = as_int(dims[axis]), as_int(size)
    if extent is None or length is None:
        return loops.split(ctx.bb, data, axis, size, squeeze=squeeze)
    lengths = [min(length, extent - start) for start in range(0, extent, length)]
    parts = split_by_sizes(ctx, data, axis, [tirx.IntImm("int64", each) for each in lengths])
    if squeeze:
        parts = [ctx.bb.normalize(relax.op.squeeze(part, [axis])) for part in parts]
    return relax.Tuple(parts)


# --- Positions -----------------------------------------------------------------------------------


def _known_position(sequence: Value, position: Value) -> int | None:
    """The index into a tuple, counted from the front; None if either is not known."""
    if not isinstance(sequence, relax.Tuple) or not isinstance(position, Constant):
        return None
    index = int(position.value.numpy().item())
    return index + len(sequence.fields) if index < 0 else index


def _check_position(index: int, sequence: Value, last: int) -> None:
    if not 0 <= index <= last:
        length = len(sequence.fields)
        raise UnsupportedError(
            f"position {index} is outside of a sequence of {length} tensors: the node always fails"
        )


def _position(bb: Any, sequence: ListValue, position: Value) -> Any:
    """A position in a list counted from the front, as a prim expression."""
    number = _known_number(position)
    if number is not None and number >= 0:
        return tirx.IntImm("int64", number)
    length = lists.length(bb, sequence)
    if number is not None:
        return length + number
    scalar = _int64_scalar(bb, position)
    from_end = bb.normalize(relax.op.add(scalar, as_tensor(bb, relax.prim_value(length))))
    is_negative = relax.op.less(scalar, relax.const(0, "int64"))
    return as_size(bb, bb.emit(relax.op.where(is_negative, from_end, scalar)))


def _scalar(bb: Any, value: Value) -> Any:
    """A number that is not negative, as a prim expression."""
    number = _known_number(value)
    if number is not None:
        return tirx.IntImm("int64", number)
    return value if is_prim(value) else as_size(bb, _int64_scalar(bb, value))


def _known_number(value: Value) -> int | None:
    if isinstance(value, Constant):
        return int(value.value.numpy().item())
    return as_int(value) if is_prim(value) else None


def _int64_scalar(bb: Any, value: Value) -> Value:
    scalar = bb.normalize(relax.op.reshape(as_tensor(bb, value), ()))
    return bb.normalize(relax.op.astype(scalar, "int64"))


# --- Optional values -----------------------------------------------------------------------------


@converts("Optional", accepts=Accepts.ANY_RANK)
def optional(ctx: ConverterContext) -> Value:
    """Optional, see https://onnx.ai/onnx/operators/onnx__Optional.html."""
    return ctx.by_tvm()


@converts("Identity", accepts=Accepts.SYMBOLIC | Accepts.ANY_RANK)
@converts("OptionalGetElement", accepts=Accepts.ANY_RANK)
def identity(ctx: ConverterContext) -> Value:
    """Identity and OptionalGetElement, see https://onnx.ai/onnx/operators/onnx__Identity.html.

    TVM's converters do not know lists and absent inputs.
    """
    value = ctx.inputs[0]
    if value is None:
        raise UnsupportedError("the optional has no value")
    if ctx.op_type == "OptionalGetElement" and isinstance(value, ListValue) and value.is_optional:
        # A run fails if there is no tensor.
        return lists.get(ctx.bb, value, tirx.IntImm("int64", 0))
    return value if isinstance(value, ListValue) else ctx.by_tvm()


@converts("OptionalHasElement", accepts=Accepts.ANY_RANK)
def optional_has_element(ctx: ConverterContext) -> Value:
    """OptionalHasElement, see https://onnx.ai/onnx/operators/onnx__OptionalHasElement.html."""
    value = ctx.inputs[0]
    if isinstance(value, ListValue) and value.is_optional:
        return lists.has_element(ctx.bb, value)
    if value is None or isinstance(value, ListValue):
        return relax.const(value is not None, "bool")
    return ctx.by_tvm()
