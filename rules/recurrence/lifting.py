"""Lifting: symbolic interpretation of a loop body, every value as an affine form.

A `LiftedValue` is an affine form with the axes of the value it stands for. Each axis is a batch
axis, along which the body computes the same everywhere, or a feature axis. The features of the form
are the elements along all feature axes in row-major order. Operators that only move elements are
carried out with numpy, on the numbers of the features.

A `Lifter` interprets nodes. A value without a form becomes a symbolic input of its own, whose
origin, an `UnliftedValue`, remembers the node and the reason: a cell that depends on it is declined
with that reason. How each operator acts on forms is in `lifted_operators` and `time_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Node, Tensor, optional
from ...rewrite.symbolic import Dim
from . import affine_forms, weights
from .affine_forms import AffineForm, SymbolicInput
from .weights import Array, Weight

RNN_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})
"""The float types that LSTM, GRU and RNN take (ONNX operator specification)."""
_LIFTED_TYPES = RNN_FLOATS | {onnx.TensorProto.BOOL}
"""Masks that are known to be all true or all false are lifted, too."""


# --- values and their axes ---


@dataclass(frozen=True)
class BatchAxis:
    """An axis along which a body computes the same everywhere."""

    size: Dim
    name: int | None = None
    """Distinguishes axes of equal size."""


Axis = int | BatchAxis
"""A number is the size of a feature axis; every axis of size 1 is a feature axis."""


@dataclass(frozen=True, eq=False)
class LiftedValue:
    """A value of a body as an affine form, with the axes of the value."""

    form: AffineForm
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The sizes of the axes."""
        return tuple(a.size if isinstance(a, BatchAxis) else a for a in self.axes)

    @property
    def batch_sizes(self) -> tuple[Dim, ...]:
        """The sizes of the batch axes."""
        return tuple(a.size for a in self.axes if isinstance(a, BatchAxis))

    def has_shape(self, shape: Sequence[Dim]) -> bool:
        """Whether the value is known to have this shape."""
        return len(self.shape) == len(shape) and all(
            symbolic.eq(a, b) is True for a, b in zip(self.shape, shape)
        )

    def equals(self, other: LiftedValue) -> bool:
        """Whether two values are known to be equal."""
        return self.axes == other.axes and self.form.key == other.form.key

    def layout(self) -> CellLayout | None:
        """The batch axis and the feature axes; None for several batch axes."""
        batch = [(k, a.size) for k, a in enumerate(self.axes) if isinstance(a, BatchAxis)]
        if len(batch) > 1:
            return None
        plain = [(k, a) for k, a in enumerate(self.axes) if isinstance(a, int)]
        wide = [(k, n) for k, n in plain if n != 1] or plain[-1:]
        features, sizes = tuple(k for k, _ in wide), tuple(n for _, n in wide)
        if batch:
            return CellLayout(len(self.axes), features, sizes, *batch[0])
        unit = next((k for k, _ in plain if k not in features), None)
        return CellLayout(len(self.axes), features, sizes, unit, 1)

    def feature_numbers(self) -> Array:
        """The numbers of the features, in the shape of the value with batch axes of size 1."""
        return np.arange(self.form.width).reshape([_feature_size(a) for a in self.axes])

    def with_form(self, form: AffineForm) -> LiftedValue:
        """Another form with the same axes."""
        return LiftedValue(form, self.axes)

    def with_features(self, numbers: Array, axes: tuple[Axis, ...]) -> LiftedValue:
        """The features with these numbers, with other axes.

        Raises Miss for more features than any cell has, unless the value has as many.
        """
        _check_features(numbers.size, self.form.width)
        return LiftedValue(self.form.take(numbers.ravel()), axes)

    def scaled(self, factor: float) -> LiftedValue:
        """The value times a number."""
        return self.with_form(self.form.scaled(factor))

    def transpose(self, order: Sequence[int]) -> LiftedValue:
        """The axes in another order, as in Transpose."""
        axes = tuple(self.axes[k] for k in order)
        return self.with_features(np.transpose(self.feature_numbers(), order), axes)

    def select(self, axis: int, pick: Callable[[Array], Array]) -> LiftedValue:
        """Selects elements along a feature axis: `pick` maps the positions 0, 1, … to those kept.

        Like an index in numpy, a single position drops the axis, an array of them may add axes.
        Raises Miss for a batch axis.
        """
        size = self.axes[axis]
        if isinstance(size, BatchAxis):
            raise Miss("it selects elements along the batch axis")
        kept = pick(np.arange(size))
        numbers = np.take(self.feature_numbers(), kept, axis)
        axes = (*self.axes[:axis], *kept.shape, *self.axes[axis + 1 :])
        return self.with_features(numbers, axes)

    def reshape(self, shape: Sequence[Dim]) -> LiftedValue:
        """Reshapes features; raises Miss where batch axes change or move among them."""
        axes: list[Axis] = []
        left = [a for a in self.axes if a != 1]
        for size in shape:
            if size == 1:
                axes.append(1)
            elif left and isinstance(left[0], BatchAxis):
                if symbolic.eq(left[0].size, size) is not True:
                    raise Miss("it reshapes a batch axis")
                axes.append(left.pop(0))
            else:
                axes.append(_take_features(left, size))
        if left:
            raise Miss("it reshapes a batch axis")
        return LiftedValue(self.form, tuple(axes))

    def broadcast_to(self, axes: tuple[Axis, ...]) -> LiftedValue:
        """Broadcasts to axes; its own axes are aligned with the last of them."""
        shape = [_feature_size(a) for a in axes]
        _check_features(math.prod(shape), self.form.width)
        return self.with_features(np.broadcast_to(self.feature_numbers(), shape), axes)

    def contract(self, axis: int, matrix: Weight) -> LiftedValue:
        """Multiplies each slice along a feature axis by a matrix (features in, features out).

        Raises Miss for a batch axis, and for more slices than any cell has.
        """
        axis %= len(self.axes)
        size = self.axes[axis]
        if isinstance(size, BatchAxis) or size != matrix.shape[0]:
            raise Miss("it sums over the batch axis")
        rows = np.moveaxis(self.feature_numbers(), axis, -1).reshape(-1, size)
        if len(rows) > 1:  # Each slice gets a matrix with the columns of all of them.
            widest = max((m.width for m, _ in self.form.monomials), default=0)
            affine_forms.check_elements(widest * len(rows) ** 2 * matrix.shape[1])
        parts = [self.form.take(row).matmul(matrix) for row in rows]
        others = [a for k, a in enumerate(self.axes) if k != axis]
        result = LiftedValue(affine_forms.concat(parts), (*others, matrix.shape[1]))
        order = list(range(len(others)))
        order.insert(axis, len(others))
        return result.transpose(order) if axis != len(others) else result


def _feature_size(axis: Axis) -> int:
    return 1 if isinstance(axis, BatchAxis) else axis


def _take_features(left: list[Axis], size: Dim) -> int:
    """Takes `size` features off the first axes of `left`, whose rest stays there."""
    if not isinstance(size, int):
        raise Miss("it merges batch and feature axes")
    missing = size
    while missing > 1:
        if not left or isinstance(left[0], BatchAxis):
            raise Miss("it merges batch and feature axes")
        first = left.pop(0)
        assert isinstance(first, int)
        if first == 0:
            raise Miss("it reshapes an axis of size 0")
        if first <= missing and missing % first == 0:
            missing //= first
        elif first % missing == 0:
            left.insert(0, first // missing)
            missing = 1
        else:
            raise Miss("it reshapes feature axes into sizes that do not divide each other")
    return size


def axes_of(shape: Sequence[Dim], batch: int | None = None) -> tuple[Axis, ...]:
    """The axes of a shape; axes of open size and the axis `batch` are batch axes."""
    return tuple(
        n if isinstance(n, int) and (k != batch or n == 1) else BatchAxis(n)
        for k, n in enumerate(shape)
    )


def _check_features(count: int, most: int) -> None:
    """Raises Miss for more features than `most`, if no cell has so many."""
    if count > max(_MOST_FEATURES, most):
        raise Miss("it would have {} features, more than {}", count, _MOST_FEATURES)


def constant_value(array: Array) -> LiftedValue:
    """A constant: all its axes are feature axes."""
    return LiftedValue(affine_forms.constant(array.ravel()), tuple(array.shape))


def concat(values: Sequence[LiftedValue], axis: int) -> LiftedValue:
    """Concatenates along a feature axis. Raises Miss for a batch axis, or if other axes differ."""
    first = values[0]
    rank = len(first.axes)
    axis %= rank
    for value in values:
        others = [a for k, a in enumerate(value.axes) if k != axis]
        same = others == [a for k, a in enumerate(first.axes) if k != axis]
        if len(value.axes) != rank or isinstance(value.axes[axis], BatchAxis) or not same:
            raise Miss("it concatenates along the batch axis, or values whose other axes differ")
    _check_features(sum(v.form.width for v in values), max(v.form.width for v in values))
    starts = np.cumsum([0, *(v.form.width for v in values[:-1])])
    numbers = np.concatenate([v.feature_numbers() + s for v, s in zip(values, starts)], axis)
    form = affine_forms.concat([v.form for v in values])
    size = sum(a for v in values if isinstance(a := v.axes[axis], int))
    axes = (*first.axes[:axis], size, *first.axes[axis + 1 :])
    return LiftedValue(form.take(numbers.ravel()), axes)


def broadcast(values: Sequence[LiftedValue]) -> list[LiftedValue]:
    """Broadcasts values against each other. Raises Miss where axes are not known to fit."""
    rank = max(len(v.axes) for v in values)
    batch = {
        k - len(v.axes) for v in values for k, a in enumerate(v.axes) if isinstance(a, BatchAxis)
    }
    values = [_without_repeats(v, batch) for v in values]
    padded = [(1,) * (rank - len(v.axes)) + v.axes for v in values]
    axes = tuple(_common_axis([p[k] for p in padded]) for k in range(rank))
    return [v.broadcast_to(axes) for v in values]


def _without_repeats(value: LiftedValue, batch: set[int]) -> LiftedValue:
    """A constant that repeats itself along a batch axis with size 1 there; other values as is."""
    bias = value.form.bias
    sizes = [a for a in value.axes if isinstance(a, int)]
    if value.form.terms or not isinstance(bias, np.ndarray) or len(sizes) < len(value.axes):
        return value
    array = bias.reshape(sizes)
    for axis in batch:
        if -axis <= array.ndim and array.shape[axis] > 1:
            first = np.take(array, [0], axis)
            if np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
    return constant_value(array)


def _common_axis(axes: Sequence[Axis]) -> Axis:
    result: Axis = 1
    for axis in axes:
        if axis == 1 or axis == result:
            continue
        if result != 1:
            raise Miss("it broadcasts a batch axis against another axis")
        result = axis
    return result


# --- the layout of a value ---


@dataclass(frozen=True)
class CellLayout:
    """Which axes of a value are its batch and its features; all other axes have size 1."""

    rank: int
    features: tuple[int, ...]
    """The feature axes in row-major order: several where gates or layers have axes of their own."""
    sizes: tuple[int, ...]
    """The sizes of the feature axes."""
    batch: int | None
    """The batch axis; None if there is none."""
    size: Dim
    """The size of the batch; 1 if there is none."""

    @property
    def kept(self) -> list[int]:
        """The batch axis, if there is one, and the feature axes."""
        return [*([] if self.batch is None else [self.batch]), *self.features]

    @property
    def units(self) -> list[int]:
        """The other axes, of size 1."""
        return [k for k in range(self.rank) if k not in self.kept]

    @property
    def order(self) -> list[int]:
        """The positions of the `kept` axes after all others were squeezed."""
        squeezed = sorted(self.kept)
        return [squeezed.index(axis) for axis in self.kept]

    def rows(self, array: Array) -> Array:
        """An array of this layout in the shape (batch, features)."""
        permuted = array.transpose([*self.units, *self.kept])
        count = 1 if self.batch is None else array.shape[self.batch]
        features = math.prod(n for k, n in enumerate(array.shape) if k != self.batch)
        return np.reshape(permuted, (count, features))


# --- where symbolic inputs come from ---


@dataclass(frozen=True, eq=False)
class UnliftedValue:
    """The origin of a symbolic input: a value that has no affine form."""

    tensor: Tensor
    node: Node
    """The node that computes it."""
    reason: Miss


@dataclass(frozen=True)
class LoopInvariant:
    """The origin of a symbolic input that is the same in every iteration: a context, an embedding."""

    value: Tensor


_MOST_FEATURES = 1 << 20
"""The most features of a lifted value. An affine form stores a number for each, and recurrent cells
have far fewer."""


def input_value(
    facts: Facts,
    tensor: Tensor,
    shape: tuple[Dim, ...],
    name: object,
    origin: object,
    batch: Collection[Dim] = (),
) -> LiftedValue | Miss:
    """A symbolic input of this shape; a Miss if it has too many features.

    Axes of open size are batch axes. Where all sizes are static, one axis may be the batch,
    preferably one of a size in `batch`. All others are feature axes (layers, directions, gates).
    """
    axes = axes_of(shape, _static_batch(shape, batch))
    width = math.prod(axis for axis in axes if isinstance(axis, int))
    if width > _MOST_FEATURES:
        return Miss("{} has {} features, more than {}", tensor, width, _MOST_FEATURES)
    source = SymbolicInput(name, width, origin)
    return LiftedValue(affine_forms.from_monomial(source, numpy_type(facts, tensor)), axes)


def _static_batch(shape: tuple[Dim, ...], batch: Collection[Dim]) -> int | None:
    """The batch axis of a value whose sizes are all static; None for a column, which has none.

    It is the axis closest to the features, which are last, that has a size in `batch`, or else the
    last axis but one.
    """
    if len(shape) < 2 or not all(isinstance(n, int) for n in shape):
        return None
    for axis in range(len(shape) - 2, -1, -1):
        if shape[axis] in batch:
            return axis
    return len(shape) - 2 if shape[-1] != 1 else None


def merge_sizes(shape: tuple[Dim, ...], merged_sizes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape with the first of `merged_sizes` in place of all of them."""
    return tuple(merged_sizes[0] if n in merged_sizes else n for n in shape)


def numpy_type(facts: Facts, tensor: Tensor) -> np.dtype[np.generic]:
    """The numpy type of the elements of a value."""
    return helper.tensor_dtype_to_np_dtype(facts.dtype(tensor))


# --- the interpreter ---


Handler = Callable[["Lifter", Node], list[LiftedValue]]
"""Computes the outputs of a node from its inputs; raises Miss for a node without affine forms."""

HANDLERS: dict[str, Handler] = {}
"""The handlers of the operators of the standard domain."""


def lifts(*operators: str) -> Callable[[Handler], Handler]:
    """Registers the handler of operators."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


class Lifter:
    """Interprets the nodes of one body; each value once."""

    def __init__(
        self,
        facts: Facts,
        inputs: Mapping[Tensor, LiftedValue],
        is_inside: Callable[[Node], bool],
        outer: Callable[[Tensor], LiftedValue | Miss],
        merged_sizes: Sequence[Dim] = (),
    ) -> None:
        """`inputs` are the symbolic inputs, `is_inside` selects the nodes to interpret, and `outer`
        lifts a value from outside that is not constant. All `merged_sizes` count as one size.
        """
        self.facts = facts
        self._is_inside = is_inside
        self._lift_outer = outer
        self._merged_sizes = merged_sizes
        self._lifted: dict[Tensor, LiftedValue | Miss] = dict(inputs)

    def value(self, tensor: Tensor) -> LiftedValue:
        """The lifted value of a tensor.

        Raises Miss for an outer value without a form, and for a value of unknown shape or of a type
        that is not lifted; any other value has a form.
        """
        found = self._lifted.get(tensor)
        if found is None:
            self._lift(tensor)
            found = self._lifted[tensor]
        if isinstance(found, Miss):
            raise Miss(found.sentence, *found.values)  # a new one, which no traceback keeps alive
        return found

    def value_or_none(self, tensor: Tensor) -> LiftedValue | None:
        """The lifted value of a tensor; None where `value` raises Miss."""
        try:
            return self.value(tensor)
        except Miss:
            return None

    def _lift(self, wanted: Tensor) -> None:
        """Lifts a value and all it depends on, without recursion along chains."""
        stack = [wanted]
        while stack:
            tensor = stack[-1]
            if tensor in self._lifted:
                stack.pop()
                continue
            node = self._inner_producer(tensor)
            if node is None:
                self._lifted[tensor] = self._outer(tensor)
                continue
            missing = [t for t in node.inputs if t.name and self._is_missing(t)]
            if missing:
                stack.extend(missing)
            else:
                self._interpret(node)

    def _is_missing(self, tensor: Tensor) -> bool:
        return tensor not in self._lifted and self._inner_producer(tensor) is not None

    def _inner_producer(self, tensor: Tensor) -> Node | None:
        """The node that computes a value, if it is to be interpreted."""
        node = self.facts.index.producer(tensor)
        return node if node is not None and self._is_inside(node) else None

    def _interpret(self, node: Node) -> None:
        handler = HANDLERS.get(node.op) if not node.domain else None
        try:
            if handler is None:
                raise Miss("{} is neither an affine operator nor an activation", node.op)
            if self.facts.dtype(node.outputs[0]) not in _LIFTED_TYPES:
                raise Miss("its result is not a float tensor")
            results = handler(self, node)
        except Miss as reason:
            for tensor in node.outputs:
                self._lifted[tensor] = self._unlifted(tensor, node, reason.with_traceback(None))
        else:
            self._lifted.update(zip(node.outputs, results))

    def _outer(self, tensor: Tensor) -> LiftedValue | Miss:
        array = self.facts.constant(tensor)
        if array is not None and array.dtype.kind in "fb":
            return constant_value(array)
        shape, dtype = self.facts.shape(tensor), self.facts.dtype(tensor)
        if shape is not None and dtype in RNN_FLOATS and is_zero(self.facts, tensor):
            zero = constant_value(np.zeros(1, numpy_type(self.facts, tensor)))
            return zero.broadcast_to(axes_of(self.shape(tensor)))
        return self._lift_outer(tensor)

    def _unlifted(self, tensor: Tensor, node: Node, reason: Miss) -> LiftedValue | Miss:
        """A symbolic input for a value without a form."""
        if self.facts.shape(tensor) is None or self.facts.dtype(tensor) not in RNN_FLOATS:
            return reason
        origin = UnliftedValue(tensor, node, reason)
        shape = self.shape(tensor)
        return input_value(self.facts, tensor, shape, ("value", id(tensor)), origin)

    # --- for handlers ---

    def operand(self, node: Node, slot: int) -> LiftedValue:
        """The lifted value of an operand."""
        return self.value(node.inputs[slot])

    def has(self, node: Node, slot: int) -> bool:
        """Whether a node has an optional operand."""
        return optional(node.inputs, slot) is not None

    def weight(self, tensor: Tensor) -> Weight | None:
        """A value that does not depend on the symbolic inputs; None for any other."""
        array = self.facts.constant(tensor)
        if array is not None:
            return array if array.dtype.kind == "f" else None
        value = self.value(tensor)
        shape = tuple(a for a in value.axes if isinstance(a, int))
        if value.form.terms or len(shape) != len(value.axes):
            return None
        return weights.reshape(value.form.bias, shape)

    def weight_value(self, tensor: Tensor) -> LiftedValue | None:
        """An outer value as a weight; None for a shape that is not static, or no float type."""
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in RNN_FLOATS:
            return None
        sizes = tuple(n for n in shape if isinstance(n, int))
        if len(sizes) < len(shape):
            return None
        weight = weights.of_tensor(tensor, sizes, numpy_type(self.facts, tensor))
        return LiftedValue(affine_forms.constant(weights.reshape(weight, (weight.size,))), sizes)

    def shape(self, tensor: Tensor) -> tuple[Dim, ...]:
        """The shape of a value, with merged sizes. Raises Miss if it is not known."""
        shape = self.facts.shape(tensor)
        if shape is None:
            raise Miss("the shape of {} is not known", tensor)
        return merge_sizes(shape, self._merged_sizes)
