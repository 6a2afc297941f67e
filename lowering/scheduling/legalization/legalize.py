"""Legalizes Relax operators: TVM's LegalizeOps, with kernels of our own for some.

All calls of one type share a kernel.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, sym, te, tirx, topi

from ...processor import is_for_llvm
from ...values import Constant
from ..injective.ordered_copies import KEEPS_ORDER
from ..kernels.affine import static_size
from ..kernels.math_functions import compute_in_float32
from ..relax.size_names import BROADCAST, OPAQUE
from .extremes import legalize_extreme
from .roi_align import legalize_roi_align
from .scatter import SCATTERS, legalize_scatter

_CALL_TIR = ir.Op.get("relax.call_tir")

_MOST_CONCATENATED = 32
"""The most tensors that one kernel concatenates."""

LegalizeFunc = Callable[[relax.BlockBuilder, Any], Any]
"""Maps a call to its legalized form."""


def legalize_operators() -> Any:
    """The pass that replaces operators by calls of kernels.

    TVM creates a kernel for every call and only then finds that an equal one exists. Most calls in
    a network have the type of an earlier call; they reuse its kernel.
    """

    def run(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = _KernelCache()
        functions = {
            name: partial(kernels.legalize, legalize) for name, legalize in _legalizations().items()
        }
        legalized = relax.transform.LegalizeOps(functions)(module)
        return compute_in_float32(legalized) if is_for_llvm() else legalized

    return tvm.transform.module_pass(run, opt_level=0, name="looplift.legalize_operators")


_RESHAPES = ("relax.expand_dims", "relax.flatten", "relax.reshape", "relax.squeeze")
"""Operators that keep the elements and their order."""


@functools.cache
def _known_operators(count: int) -> dict[str, ir.Op]:
    """Every operator that TVM knows, by name. They are `count`: a user may register more."""
    return {name: ir.Op.get(name) for name in ir.Op.list_op_names()}


def _legalizations() -> dict[str, LegalizeFunc]:
    """The legalization of each operator, as it is registered now: users may replace one."""
    operators = _known_operators(len(ir.Op.list_op_names()))
    found = {name: operator.get_attr("FLegalize") for name, operator in operators.items()}
    known = {name: legalize for name, legalize in found.items() if legalize is not None}
    means = {name: partial(_avg_pool, known[name]) for name in _POOL_LAYOUTS if name in known}
    where = {"relax.where": partial(_where, known["relax.where"])}
    roi_align = {
        "relax.vision.roi_align": partial(legalize_roi_align, known["relax.vision.roi_align"])
    }
    extremes = {
        name: partial(legalize_extreme, known[name])
        for name in ("relax.max", "relax.min")
        if is_for_llvm()
    }
    larger = {
        name: partial(_larger_or_smaller, known[name], kind)
        for name, kind in (("relax.maximum", tirx.Max), ("relax.minimum", tirx.Min))
        if is_for_llvm()
    }
    scatter = {"relax.scatter_nd": partial(_scatter_nd_by_tvm, known["relax.scatter_nd"])}
    if is_for_llvm():
        scatter = {name: partial(legalize_scatter, known[name]) for name in SCATTERS}
    reshapes = {name: partial(_reshape, known[name]) for name in _RESHAPES}
    changed = reshapes | means | where | roi_align | extremes | larger | scatter
    own = {"relax.concat": partial(_concat, known["relax.concat"])}
    return known | changed | own | {"relax.take": _take, "relax.nn.relu": _relu}


@dataclass(frozen=True)
class _KernelCall:
    """A call of a kernel that replaces calls of an operator with operands of certain types."""

    kernel: Any
    operand_indices: list[int]
    """The operands that the kernel takes, in order."""
    sizes: Sequence[Any]
    """The sizes that it takes after its operands."""
    types: Sequence[Any]

    def on(self, operands: list[Any], result: Any) -> Any:
        """The same call on other operands, of the type `result`."""
        fields = relax.Tuple([operands[index] for index in self.operand_indices])
        return ir.Call(
            _CALL_TIR, [self.kernel, fields, *self.sizes], None, self.types, ret_ty=result
        )


@dataclass
class _KernelCache:
    """The kernels of a module by what they depend on."""

    _calls: dict[Any, _KernelCall | None] = field(default_factory=dict)
    """None for calls that become more than one kernel call."""

    def legalize(self, legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
        """The legalized call."""
        operands = _operands(call)
        key = _key(call, operands)
        if key in self._calls:
            known = self._calls[key]
            return legalize(bb, call) if known is None else known.on(operands, call.ty)
        named = _with_named_sizes(bb, call)
        if named is not None:
            made = _reusable_call(named, _operands(named), legalize(bb, named))
            if made is not None and not made.sizes:
                made = self._calls[key] = replace(made, types=[call.ty])
                return made.on(operands, call.ty)
        result = legalize(bb, call)
        self._calls[key] = _reusable_call(call, operands, result)
        return result


_COMPARES_SIZES = re.compile(r"relax\.(matmul$|nn\.(conv|max_pool|avg_pool)\d)")
"""Operators over windows, whose kernels compare positions in padded data with the size of the data,
and products, for which TVM compares the sizes of the operands."""


def _with_named_sizes(bb: relax.BlockBuilder, call: Any) -> Any:
    """The call on operands with a variable for each computed size, for some operators.

    TVM simplifies `position < max(n - 1, 0)` to comparisons with n and 0, so that no rule
    recognises the padding; and it does not see that `max(n, 0) // 64` is the same in two operands.
    None for other operators, and where no size is computed.
    """
    if not _COMPARES_SIZES.match(call.op.name):
        return None
    names: list[tuple[Any, Any]] = []

    def named(size: Any) -> Any:
        if isinstance(size, (tirx.IntImm, ir.Var)):
            return size
        for known, name in names:
            if tvm_ffi.structural_equal(known, size):
                return name
        names.append((size, tirx.Var("size", "int64")))
        return names[-1][1]

    def like(operand: Any) -> Any:
        shape = getattr(operand.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr):
            return operand
        sizes = [named(size) for size in shape.values]
        return relax.Var("operand", relax.TensorType(sizes, operand.ty.dtype))

    operands = [a if isinstance(a, Constant) else like(a) for a in call.args]
    if not names:
        return None
    if call.op.name == "relax.matmul" and isinstance(call.ty.shape, relax.ShapeExpr):
        operands = _with_equal_stacks(operands)
    named_call = bb.normalize(ir.Call(call.op, operands, call.attrs, call.ty_args))
    return named_call if isinstance(named_call.ty.shape, relax.ShapeExpr) else None


def _with_equal_stacks(operands: list[Any]) -> list[Any]:
    """The operands of a product of known shape with one size for an axis along which both are
    stacked: sizes that are equal may be computed in two ways, and TVM forgets what it has proven.
    """
    left, right = operands
    if isinstance(left, Constant) or isinstance(right, Constant):
        return operands
    sizes, others = (list(operand.ty.shape.values) for operand in operands)
    for axis in range(3, min(len(sizes), len(others)) + 1):
        if not any(static_size(size) == 1 for size in (sizes[-axis], others[-axis])):
            others[-axis] = sizes[-axis]
    return [left, relax.Var("operand", relax.TensorType(others, right.ty.dtype))]


def _arguments(call: Any) -> list[Any]:
    """The arguments of a call, with the fields of tuples in their place."""
    return [a for arg in call.args for a in (arg.fields if _is_tuple(arg) else [arg])]


def _is_tuple(argument: Any) -> bool:
    return isinstance(argument, relax.Tuple)


def _operands(call: Any) -> list[Any]:
    """The tensors that a call takes, without constant scalars: TVM writes those into the kernel."""
    return [
        a
        for a in _arguments(call)
        if isinstance(getattr(a, "ty", None), relax.TensorType)
        and not (isinstance(a, Constant) and not a.ty.ndim)
    ]


def _key(call: Any, operands: list[Any]) -> Any:
    """Everything that the kernel depends on: the operator, its attributes and types, which operands
    are the same, and constant scalars.
    """
    parts = [
        call.op.name,
        call.attrs,
        call.ty,
        [len(arg.fields) if _is_tuple(arg) else -1 for arg in call.args],
        [_index_of(operands, operand) for operand in operands],
        [a if _index_of(operands, a) is None else a.ty for a in _arguments(call)],
    ]
    return tvm_ffi.StructuralKey(tvm_ffi.convert(parts))  # type: ignore[call-arg]


def _index_of(operands: list[Any], operand: Any) -> int | None:
    return next((k for k, other in enumerate(operands) if other.same_as(operand)), None)


def _reusable_call(call: Any, operands: list[Any], result: Any) -> _KernelCall | None:
    """The kernel call to reuse; None if the kernel cannot serve other calls.

    These are results that are not a single `call_tir`, that do not take all operands, as the value
    of a constant may be part of the kernel, and whose sizes statements before them compute.
    """
    if not isinstance(result, ir.Call) or not result.op.same_as(_CALL_TIR):
        return None
    kernel, arguments, *sizes = result.args
    indices = [_index_of(operands, argument) for argument in arguments.fields]
    if None in indices or {_index_of(operands, o) for o in operands} != set(indices):
        return None
    if not tvm_ffi.structural_equal(result.ty_args[0], call.ty):
        return None
    return _KernelCall(kernel, [k for k in indices if k is not None], sizes, result.ty_args)


_POOL_LAYOUTS = {"relax.nn.avg_pool1d": "NCW", "relax.nn.avg_pool2d": "NCHW"}


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling operator, by axis."""

    sizes: list[int]
    strides: list[int]
    before: list[int]
    """The padding before the data."""
    after: list[int]
    """The padding after it, with what windows that are rounded up reach beyond."""

    def sums(self, shape: Sequence[Any], x: te.Tensor) -> te.Tensor:
        """The sums of the elements of all windows; padding is 0."""
        before, after = ([0, 0, *padding] for padding in (self.before, self.after))
        padded = topi.nn.pad(x, before, after, tirx.const(0, x.dtype))
        taps = [te.reduce_axis((0, size)) for size in self.sizes]

        def total(image: Any, channel: Any, *places: Any) -> Any:
            read = [o * s + tap for o, s, tap in zip(places, self.strides, taps, strict=True)]
            return te.sum(padded(image, channel, *read), axis=taps)

        return te.compute(shape, total, name="pool_sum")

    def counts(self, dtype: str, *sizes: Any) -> te.Tensor:
        """The numbers of elements in the windows, at least 1; `sizes` are those of the data and of
        the result.
        """
        rank = len(self.sizes)

        def count(*places: Any) -> Any:
            number: Any = tirx.const(1, "int64")
            given = places[2:], self.strides, self.sizes, self.before, sizes[:rank]
            axes = zip(*given, strict=True)
            for place, stride, window, padding, size in axes:
                first = place * stride - padding
                inside = tirx.min(first + window, size) - tirx.max(first, 0)
                number = number * tirx.max(inside, 0)
            return tirx.max(number, 1).astype(dtype)

        return te.compute([1, 1, *sizes[rank:]], count, name="pool_count")


def _avg_pool(legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
    """Divides the sums of windows by the numbers of their elements, which a kernel of its own
    counts: TVM's kernel counts them again for each channel.
    """
    (data,), attrs = call.args, call.attrs
    windows, strides, padding, dilations = (
        [int(number) for number in numbers]
        for numbers in (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
    )
    shapes = [getattr(part.ty, "shape", None) for part in (data, call)]
    if (
        attrs.count_include_pad
        or any(dilation != 1 for dilation in dilations)
        or {str(attrs.layout), str(attrs.out_layout)} != {_POOL_LAYOUTS[call.op.name]}
        or not all(isinstance(shape, relax.ShapeExpr) for shape in shapes)
        or not is_for_llvm()
    ):
        return legalize(bb, call)
    is_whole = not any(padding) and not attrs.ceil_mode
    if is_whole and all(size <= stride for size, stride in zip(windows, strides, strict=True)):
        return legalize(bb, call)  # Each element is in one window: added up as fast where it is.
    data_shape, result_shape = (list(getattr(shape, "values", [])) for shape in shapes)
    before, after = padding[: len(strides)], padding[len(strides) :]
    if attrs.ceil_mode:
        after = [size + stride - 1 for size, stride in zip(after, strides, strict=True)]
    found = _Windows(windows, strides, before, after)
    total = bb.emit(bb.call_te(partial(found.sums, result_shape), data, primfunc_name_hint="sums"))
    if is_whole:
        number = relax.const(math.prod(windows), data.ty.dtype)
        return bb.call_te(topi.divide, total, number)
    # Opaque, so that it is not fused with the division, which would count for each channel again.
    number = bb.emit(
        bb.call_te(
            partial(found.counts, str(data.ty.dtype)), *data_shape[2:], *result_shape[2:],
            primfunc_name_hint="count_elements", primfunc_attrs={"op_pattern": OPAQUE},
        )
    )  # fmt: skip
    return bb.call_te(topi.divide, total, number)


def _where(legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
    """Selects by the condition as it is: TVM's own kernel converts it to integers of 64 bits."""
    result = _broadcast_shape(call)
    if not is_for_llvm() or result is None:
        return legalize(bb, call)

    def where(*tensors: te.Tensor) -> te.Tensor:
        def element(*places: Any) -> Any:
            return tirx.Select(*(_broadcast_element(tensor, places) for tensor in tensors))

        return te.compute(result, element, name="T_where", tag="broadcast")

    return bb.call_te(where, *call.args)


def _larger_or_smaller(
    legalize: LegalizeFunc, kind: Callable[[Any, Any], Any], bb: relax.BlockBuilder, call: Any
) -> Any:
    """The maximum or minimum of two tensors, NaN where an element of either is.

    TVM's own kernel gives the right element where the left one is NaN.
    """
    left, right = call.args
    if _is_scalar_number(right):
        call = bb.normalize(relax.Call(call.op, [right, left]))
        left = right
    result = _broadcast_shape(call)
    if "float" not in str(left.ty.dtype) or _is_scalar_number(left) or result is None:
        return legalize(bb, call)

    def extreme(*tensors: te.Tensor) -> te.Tensor:
        def element(*places: Any) -> Any:
            a, b = (_broadcast_element(tensor, places) for tensor in tensors)
            return tirx.Select(tirx.isnan(a), a, kind(a, b))

        return te.compute(result, element, name=f"T_{call.op.name[6:]}", tag="broadcast")

    return bb.call_te(extreme, *call.args, primfunc_attrs={"op_pattern": BROADCAST})


def _is_scalar_number(operand: Any) -> bool:
    """Whether an operand is a scalar constant, and not NaN.

    Calls with other constants share the kernel of those with tensors.
    """
    is_scalar = isinstance(operand, Constant) and not operand.ty.ndim
    return is_scalar and not np.isnan(operand.value.numpy())


def _broadcast_shape(call: Any) -> list[Any] | None:
    """The shape of a call to which its operands are known to broadcast; None for other calls."""
    shapes = [getattr(part.ty, "shape", None) for part in (*call.args, call)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return None
    *operands, result = (list(getattr(shape, "values", [])) for shape in shapes)
    return result if all(_broadcasts(shape, result) for shape in operands) else None


def _broadcasts(shape: Sequence[Any], result: Sequence[Any]) -> bool:
    """Whether each axis of a shape has the size 1 or that of the result."""
    return all(
        static_size(size) == 1 or tvm_ffi.structural_equal(size, whole)
        for size, whole in zip(reversed(shape), reversed(result))
    )


def _broadcast_element(tensor: te.Tensor, places: Sequence[Any]) -> Any:
    here = places[len(places) - len(tensor.shape) :]
    return tensor(
        *(0 if static_size(size) == 1 else p for size, p in zip(tensor.shape, here, strict=True))
    )


def _reshape(legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
    """Marks the kernel as one that keeps the order of elements.

    What it computes does not say so where several sizes are unknown: it divides places by them.
    """
    result = legalize(bb, call)
    if isinstance(result, ir.Call) and result.op.same_as(_CALL_TIR):
        kernel = result.args[0]
        bb.update_func(kernel, bb.get()[kernel].with_attr(KEEPS_ORDER, True))
    return result


def _scatter_nd_by_tvm(legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
    """Names computed sizes: TVM's kernel refuses equal ones that are not the same expression.

    That the sizes fit has been checked, see the converter of ScatterND.
    """
    names: list[tuple[Any, Any]] = []

    def named(size: Any) -> Any:
        if isinstance(size, (tirx.IntImm, ir.Var)):
            return size
        for name, known in names:
            if sym.Analyzer().can_prove_equal(size, known):
                return name
        names.append((tirx.Var("size", size.ty.dtype), size))
        return names[-1][0]

    shapes = [getattr(arg.ty, "shape", None) for arg in call.args[:2]]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return legalize(bb, call)
    data, indices = ([named(size) for size in arg.ty.shape.values] for arg in call.args[:2])
    depth = static_size(indices[-1])
    if depth is None:
        return legalize(bb, call)
    operands = [
        relax.Var(name, relax.TensorType(sizes, arg.ty.dtype))
        for name, sizes, arg in zip(
            ("data", "indices", "updates"),
            (data, indices, [*indices[:-1], *data[depth:]]),
            call.args,
            strict=True,
        )
    ]
    if not names:
        return legalize(bb, call)
    with_names = bb.normalize(relax.op.scatter_nd(*operands, call.attrs.reduction))
    kernel, _ = legalize(bb, with_names).args
    fields = relax.Tuple(list(call.args))
    return ir.Call(_CALL_TIR, [kernel, fields], None, [call.ty], ret_ty=call.ty)


def _concat(legalize: LegalizeFunc, bb: relax.BlockBuilder, call: Any) -> Any:
    """Concatenates many tensors in parts, and then these.

    The time to compile a kernel grows faster than the number of its parameters. The parts are not
    fused, so that it stays small.
    """
    while _is_tuple(call.args[0]) and len(call.args[0].fields) > _MOST_CONCATENATED:
        fields, axis = list(call.args[0].fields), call.attrs.axis
        parts = [
            bb.emit_te(
                lambda *tensors, axis: topi.concatenate(tensors, axis),
                *fields[first : first + _MOST_CONCATENATED],
                axis=0 if axis is None else int(axis),
                primfunc_name_hint="concatenate",
                primfunc_attrs={"op_pattern": OPAQUE},
            )
            for first in range(0, len(fields), _MOST_CONCATENATED)
        ]
        call = bb.normalize(relax.op.concat(parts, axis))
    return legalize(bb, call)


def _relu(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM's own kernel turns NaN into 0; onnxruntime keeps it."""

    def relu(x: te.Tensor) -> te.Tensor:
        # `Max(a, b)` is `a > b ? a : b`, so that with NaN as b the result is NaN.
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Max(zero, x(*i)), name="relu", tag="elemwise")

    return bb.call_te(relu, *call.args)


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM's own kernel prints for each that it does not check indices, and reads any memory.

    ONNX does not allow indices outside of the data; here they are taken for the first or last. That
    there is a first is not checked: a test of the size beside each element takes three times as
    long as the copy of a row.
    """
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if axis is None or mode != "fast":
        return bb.call_te(topi.take, data, indices, axis, mode=mode)

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        first = int(axis) % len(data.shape)
        end = first + len(indices.shape)
        shape = [*data.shape[:first], *indices.shape, *data.shape[first + 1 :]]
        last = data.shape[first] - 1

        def element(*places: Any) -> Any:
            index = indices(*places[first:end]).astype("int64")
            index = tirx.max(tirx.min(index, last), 0)
            return data(*places[:first], index, *places[end:])

        return te.compute(shape, element, name="T_take", tag="injective")

    return bb.call_te(take, data, indices)
