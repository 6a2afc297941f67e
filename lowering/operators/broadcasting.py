"""ONNX's broadcasting where sizes are symbolic: which of two sizes is 1 is known at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import as_int, fresh_dim, match


def known_dims(tensor: Any) -> list[Any] | None:
    """The sizes of a tensor, numbers or formulas, or None if they are not known."""
    kind = tensor.ty
    if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
        return list(kind.shape.values)
    return None


def broadcast_dims(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that several shapes broadcast to. Raises UnsupportedError if they cannot."""
    analyzer = sym.Analyzer()
    result: list[Any] = []
    for shape in shapes:
        rank = max(len(result), len(shape))
        pairs = zip(_pad(result, rank), _pad(shape, rank), strict=True)
        result = [_broadcast_dim(a, b, analyzer) for a, b in pairs]
    return result


def _pad(shape: Sequence[Any], rank: int) -> list[Any]:
    return [tirx.IntImm("int64", 1)] * (rank - len(shape)) + list(shape)


def _broadcast_dim(left: Any, right: Any, analyzer: Any) -> Any:
    first, second = as_int(left), as_int(right)
    if first == 1 or second == 1:
        return right if first == 1 else left
    if first is not None and second is not None and first != second:
        raise UnsupportedError(f"sizes {first} and {second} do not broadcast")
    if first is not None or analyzer.can_prove_equal(left, right):
        return left
    if second is not None:
        return right
    return tirx.Select(left == 1, right, left)


def expand(bb: Any, tensor: Any, shape: Sequence[Any]) -> Any:
    """A tensor of known shape, broadcast to a shape that `broadcast_dims` gave."""
    analyzer = sym.Analyzer()
    dims = known_dims(tensor) or []
    pairs = list(zip(_pad(dims, len(shape)), shape, strict=True))
    if all(analyzer.can_prove_equal(own, out) for own, out in pairs) and len(dims) == len(shape):
        return tensor
    if all(as_int(own) == 1 or analyzer.can_prove_equal(own, out) for own, out in pairs):
        return bb.normalize(relax.op.broadcast_to(tensor, relax.ShapeExpr(list(shape))))
    return bb.normalize(bb.call_te(_expand, tensor, list(shape), primfunc_name_hint="expand"))


def _expand(tensor: Any, shape: Sequence[Any]) -> Any:
    analyzer = sym.Analyzer()
    offset = len(shape) - len(tensor.shape)

    def source(axis: int, size: Any, position: Any) -> Any:
        if as_int(size) == 1:
            return 0
        if analyzer.can_prove_equal(size, shape[offset + axis]):
            return position
        return tirx.Select(size == 1, tirx.IntImm("int64", 0), position)

    def element(*positions: Any) -> Any:
        axes = enumerate(zip(tensor.shape, positions[offset:], strict=True))
        return tensor(*(source(axis, size, position) for axis, (size, position) in axes))

    return te.compute(list(shape), element, name="expand")


def align(bb: Any, inputs: Sequence[Any]) -> list[Any] | None:
    """Tensors broadcast to their common shape, or None if that is not known."""
    shapes = [known_dims(tensor) for tensor in inputs]
    if None in shapes:
        return None
    common = broadcast_dims([shape for shape in shapes if shape is not None])
    aligned = [expand(bb, tensor, common) for tensor in inputs]
    if not any(isinstance(size, tirx.Select) for size in common):
        return aligned
    # A choice between two sizes becomes a symbol: choices among choices would grow without end.
    named = [fresh_dim("d") if isinstance(size, tirx.Select) else size for size in common]
    return [cast_sizes(bb, tensor, named) for tensor in aligned]


def agree(bb: Any, inputs: Sequence[Any], *, except_axis: int) -> list[Any]:
    """Tensors cast to have the sizes of the first but along one axis; a run where not, fails."""
    shapes = [known_dims(tensor) for tensor in inputs]
    first = shapes[0]
    if first is None:
        return list(inputs)
    axis = except_axis % len(first)
    cast = []
    for tensor, shape in zip(inputs, shapes, strict=True):
        own = first if shape is None else [*first[:axis], shape[axis], *first[axis + 1 :]]
        cast.append(cast_sizes(bb, tensor, own))
    return cast


def cast_sizes(bb: Any, tensor: Any, shape: Sequence[Any]) -> Any:
    """A tensor cast to sizes that are not known to be its own; a run where not, fails."""
    analyzer = sym.Analyzer()
    dims = known_dims(tensor)
    if dims is None or len(dims) != len(shape):
        return tensor
    pairs = zip(dims, shape, strict=True)
    if all(analyzer.can_prove_equal(own, wanted) for own, wanted in pairs):
        return tensor
    return match(bb, tensor, relax.TensorType(list(shape), tensor.ty.dtype))


def with_size(bb: Any, tensor: Any, axis: int, size: Any) -> Any:
    """A tensor of known shape as it is; a run in which the axis does not have the size, fails.

    UnsupportedError: no run has it.
    """
    dims = known_dims(tensor) or []
    own, wanted = as_int(dims[axis]), as_int(sym.Analyzer().simplify(size))
    if own is not None and wanted is not None and own != wanted:
        raise UnsupportedError(f"axis {axis} has {own} elements, and should have {wanted}")
    checked = cast_sizes(bb, tensor, [*dims[:axis], size, *dims[axis + 1 :]])
    return cast_sizes(bb, checked, dims)
