"""Broadcasting of symbolic shapes: the run decides which of two sizes is 1.

The rules are those of https://onnx.ai/onnx/repo-docs/Broadcasting.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, sym, te, tirx
from tvm.ir import is_prim_var

from ...rewrite.errors import UnsupportedError
from ..values import ANY_SIZE, Value, as_int, fresh_dim, is_tensor, match
from .registry import ConverterContext

ZERO = tirx.IntImm("int64", 0)
ONE = tirx.IntImm("int64", 1)


def known_dims(tensor: Value) -> list[Any] | None:
    """The dims of a tensor, numbers or symbolic expressions; None if its shape is not known."""
    kind = tensor.ty
    if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
        return list(kind.shape.values)
    return None


def dims_of(tensor: Value, name: str) -> list[Any]:
    """The dims of a tensor. Raises UnsupportedError, with the name of the input, if not known."""
    dims = known_dims(tensor)
    if dims is None:
        raise UnsupportedError(f"the shape of the {name} is not known")
    return dims


def lacks_shape(value: Value) -> bool:
    """Whether TVM could not derive the shape of a result."""
    return isinstance(value.ty, relax.TensorType) and value.ty.shape is None


def broadcast_dims(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that several shapes broadcast to. Raises UnsupportedError if they cannot."""
    analyzer = sym.Analyzer()
    result: list[Any] = []
    for shape in shapes:
        rank = max(len(result), len(shape))
        pairs = zip(_pad_rank(result, rank), _pad_rank(shape, rank), strict=True)
        result = [_broadcast_dim(a, b, analyzer) for a, b in pairs]
    return result


def _pad_rank(shape: Sequence[Any], rank: int) -> list[Any]:
    return [ONE] * (rank - len(shape)) + list(shape)


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
    for size, other in ((left, right), (right, left)):
        if _must_equal(other, size):
            return size
    return tirx.Select(left == 1, right, left)


def _must_equal(size: Any, other: Any) -> bool:
    """Whether an axis of one size broadcasts to another size only if the two are equal."""
    return _is_clipped(size, other) or _is_always(size, other)


def _is_clipped(clipped: Any, size: Any) -> bool:
    """Whether a size is `min(size, n)` of the other for a number n > 1, as of a slice of a table.

    Where the two differ, neither is 1, and a run fails.
    """
    if not isinstance(clipped, tirx.Min):
        return False
    limits = [x for x in (clipped.a, clipped.b) if not tvm_ffi.structural_equal(x, size)]
    return len(limits) == 1 and (as_int(limits[0]) or 0) > 1


_MOST_CASES = 8
"""The largest n for which `max(symbol - n, 0)` is looked at case by case."""


def _is_always(size: Any, symbol: Any) -> bool:
    """Whether a size that depends on `max(symbol - n, 0)` is the symbol, case by case.

    TVM does not prove that `max(2*t - max(t - 1, 0) - 1, 0)` is t.
    """
    if not is_prim_var(symbol):
        return False
    simplify = sym.Analyzer().simplify
    found: set[int] = set()

    def visit(largest: Any) -> None:
        for part in (largest.a, largest.b):
            found.add(as_int(simplify(symbol - part)) or 0)

    tvm_ffi.structural_walk(size, (tirx.Max, visit))
    most = max(found, default=0)
    if not 0 < most <= _MOST_CASES:
        return False
    rest = tirx.Var("rest", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(rest, ANY_SIZE)
    # Each number below the largest n, and all from there on.
    cases = [*(tirx.IntImm("int64", number) for number in range(most)), rest + most]

    def holds(case: Any) -> bool:
        def replace(variable: Any) -> Any:
            return case if variable.same_as(symbol) else variable

        in_case = tvm_ffi.structural_map(size, (ir.Var, replace), order="post")
        return bool(analyzer.can_prove_equal(in_case, case))

    return all(map(holds, cases))


def broadcast_to(bb: Any, tensor: Value, shape: Sequence[Any]) -> Value:
    """A tensor of known shape, broadcast to a shape that `broadcast_dims` returned.

    A run in which an axis has neither the size 1 nor that of the shape fails.
    """
    analyzer = sym.Analyzer()
    dims = known_dims(tensor) or []
    own_axes = shape[len(shape) - len(dims) :]
    dims = [out if _must_equal(own, out) else own for own, out in zip(dims, own_axes, strict=True)]
    tensor = match_dims(bb, tensor, dims)
    pairs = list(zip(_pad_rank(dims, len(shape)), shape, strict=True))
    if all(analyzer.can_prove_equal(own, out) for own, out in pairs) and len(dims) == len(shape):
        return tensor
    if all(as_int(own) == 1 or analyzer.can_prove_equal(own, out) for own, out in pairs):
        return bb.normalize(relax.op.broadcast_to(tensor, relax.ShapeExpr(list(shape))))
    required = [
        own if _always_fits(own, out, analyzer) else _required_size(own, out)
        for own, out in pairs[len(shape) - len(dims) :]
    ]
    # The first cast checks the sizes, the second restores the symbols that `_expand` compares.
    checked = match_dims(bb, match_dims(bb, tensor, required), dims)
    return bb.normalize(bb.call_te(_expand, checked, list(shape), primfunc_name_hint="expand"))


def _always_fits(own: Any, out: Any, analyzer: Any) -> bool:
    """Whether an axis of size `own` is known to broadcast to `out`."""
    if as_int(own) == 1 or analyzer.can_prove_equal(own, out):
        return True
    # What `_broadcast_dim` returns for this axis and another.
    chosen = isinstance(out, tirx.Select) and analyzer.can_prove_equal(out.false_value, own)
    return chosen and bool(tvm_ffi.structural_equal(out.condition, own == 1))


def _required_size(own: Any, out: Any) -> Any:
    """The size that an axis of size `own` must have to be broadcast to `out`."""
    return out if as_int(own) is not None else tirx.Select(own == 1, ONE, out)


def _expand(tensor: Any, shape: Sequence[Any]) -> Any:
    """Broadcasting where the run decides whether an axis of the tensor has size 1."""
    analyzer = sym.Analyzer()
    offset = len(shape) - len(tensor.shape)

    def source(axis: int, size: Any, position: Any) -> Any:
        if as_int(size) == 1:
            return 0
        if analyzer.can_prove_equal(size, shape[offset + axis]):
            return position
        return tirx.Select(size == 1, ZERO, position)

    def element(*positions: Any) -> Any:
        axes = enumerate(zip(tensor.shape, positions[offset:], strict=True))
        return tensor(*(source(axis, size, position) for axis, (size, position) in axes))

    return te.compute(list(shape), element, name="expand")


def broadcast_together(bb: Any, inputs: Sequence[Value]) -> list[Value] | None:
    """Tensors broadcast to their common shape; None if a shape is not known."""
    shapes = [known_dims(tensor) for tensor in inputs]
    if None in shapes:
        return None
    common = broadcast_dims([shape for shape in shapes if shape is not None])
    aligned = [broadcast_to(bb, tensor, common) for tensor in inputs]
    if not any(isinstance(size, tirx.Select) for size in common):
        return aligned
    # A symbol replaces each choice between two sizes: nested choices would grow exponentially.
    named = [fresh_dim("d") if isinstance(size, tirx.Select) else size for size in common]
    return [match_dims(bb, tensor, named) for tensor in aligned]


def convert_broadcast(ctx: ConverterContext) -> Value:
    """What TVM's converter gives for an elementwise operator, with a shape that is known.

    TVM gives a result of unknown shape where symbolic sizes are not known to agree, and that cannot
    be compiled. In this case the inputs are broadcast first.
    """
    result = ctx.bb.normalize(ctx.by_tvm())
    if not lacks_shape(result):
        return result
    aligned = broadcast_together(ctx.bb, ctx.inputs)
    return result if aligned is None else ctx.by_tvm(aligned)


Pair = tuple[Any, Any]
"""Two symbols of sizes."""


class BroadcastPairs:
    """Pairs of symbols that are broadcast against each other, where only the run knows which is 1.

    Such a pair gives a size with a new symbol, which stands for the first of the pair after that:
    where all are equal, it is the same.
    """

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self._origins: dict[Any, Any] = {}

    def note(self, inputs: Sequence[Value], output: Value) -> None:
        """Notes the pairs of an operator."""
        if not is_tensor(output):
            return
        *given, result = (known_dims(v) or [] for v in (*inputs, output) if is_tensor(v))
        for axis in range(1, len(result) + 1):
            sizes = [dims[-axis] for dims in given if len(dims) >= axis]
            size = result[-axis]
            is_new = is_prim_var(size) and not any(map(size.same_as, sizes))
            if not is_new and not isinstance(size, tirx.Select):
                continue
            symbols = [symbol for symbol in map(self._symbol, sizes) if symbol is not None]
            pairs = [(symbols[0], s) for s in symbols[1:] if not s.same_as(symbols[0])]
            self.pairs += pairs
            if pairs and is_new:
                self._origins[size] = symbols[0]

    def _symbol(self, size: Any) -> Any:
        """The symbol `n` of a size `n` or `min(n, number)`, or of a choice; None for any other."""
        if isinstance(size, tirx.Select):
            return self._symbol(size.false_value)
        parts = [size.a, size.b] if isinstance(size, tirx.Min) else [size]
        symbols = [part for part in parts if as_int(part) is None]
        if len(symbols) != 1 or not is_prim_var(symbols[0]):
            return None
        return self._origins.get(symbols[0], symbols[0])


def match_dims(bb: Any, tensor: Value, shape: Sequence[Any]) -> Value:
    """A tensor of type `shape`; a run in which it has another shape fails."""
    analyzer = sym.Analyzer()
    dims = known_dims(tensor)
    if dims is None or len(dims) != len(shape):
        return tensor
    pairs = zip(dims, shape, strict=True)
    if all(analyzer.can_prove_equal(own, wanted) for own, wanted in pairs):
        return tensor
    return match(bb, tensor, relax.TensorType(list(shape), tensor.ty.dtype))


def match_sizes(
    bb: Any, data: Value, operands: Sequence[Value | None], axes: Sequence[int]
) -> Value:
    """The data with the numbers that operands have along its axes in place of symbolic sizes.

    The operands are broadcast to these axes, and the data is not, so that a run in which the data
    has another size fails.
    """
    dims = dims_of(data, "data")
    for operand in operands:
        shape = [] if operand is None else known_dims(operand) or []
        for axis, size in zip(axes[::-1], shape[::-1], strict=False):
            if as_int(dims[axis]) is None and as_int(size) not in (None, 1):
                dims[axis] = size
    return match_dims(bb, data, dims)


def match_other_axes(bb: Any, inputs: Sequence[Value], axis: int) -> list[Value]:
    """Tensors that have the sizes of the first one along every axis except `axis`.

    A run in which they have other sizes fails.
    """
    shapes = [known_dims(tensor) for tensor in inputs]
    first = shapes[0]
    if first is None:
        return list(inputs)
    axis %= len(first)
    matched = []
    for tensor, shape in zip(inputs, shapes, strict=True):
        wanted = first if shape is None else [*first[:axis], shape[axis], *first[axis + 1 :]]
        matched.append(match_dims(bb, tensor, wanted))
    return matched


def require_size(bb: Any, tensor: Value, axis: int, size: Any) -> Value:
    """A tensor of known shape, unchanged; a run in which `axis` does not have `size` fails.

    Raises UnsupportedError if every run would fail.
    """
    dims = known_dims(tensor) or []
    own, wanted = as_int(dims[axis]), as_int(sym.Analyzer().simplify(size))
    if own is not None and wanted is not None and own != wanted:
        raise UnsupportedError(f"axis {axis} has size {own}, but the operator needs size {wanted}")
    checked = match_dims(bb, tensor, [*dims[:axis], size, *dims[axis + 1 :]])
    return match_dims(bb, checked, dims)
