"""Which nodes are pure, and which never fail: what rules may remove, duplicate or hoist."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .. import symbolic
from ..graph.index import Index
from ..graph.ir import Node, bodies, optional
from ..symbolic import Dim
from .axes import named_axes
from .fact import FLOAT_OR_DOUBLE
from .facts import Facts
from .iteration_bounds import nonnegative_in_iteration

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip
"""Operators whose results differ between runs, even with a seed (ONNX operator specification)."""

TOTAL_ELEMENTWISE = frozenset(
    [
        "Abs",
        "Acos",
        "Add",
        "And",
        "Asin",
        "Atan",
        "Cast",
        "Ceil",
        "Cos",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Sqrt",
        "Sub",
        "Tan",
        "Tanh",
        "Where",
        "Xor",
    ]
)
"""Element-wise operators that never fail on operands that can be broadcast."""

MIRRORED = {
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
}
"""The ordered comparison that gives the same for exchanged operands."""


_SHORT_RANGE = 1 << 16
"""The length up to which a Range of fixed length is known to fit memory."""


def is_random(node: Node) -> bool:
    """Whether two runs of the node may differ; for Dropout, only in training mode."""
    if node.op == "Dropout" and not node.domain:
        return optional(node.inputs, 2) is not None
    return node.op in RANDOM and not node.domain


def is_pure(node: Node, index: Index) -> bool:
    """Whether the outputs depend on the operands only.

    Holds for standard operators that are not random and whose bodies are pure.
    """
    if node.domain or is_random(node):
        return False
    return all(is_pure(inner, index) for body in bodies(node) for inner in index.nodes(body))


def cannot_fail(node: Node, facts: Facts) -> bool:
    """Whether the node never fails.

    Holds for Shape and Size, for a Concat of vectors of fixed lengths, as shapes are, for Unsqueeze
    at known axes, for Squeeze of axes of size 1, for Transpose, for DequantizeLinear with scales
    that fit, for a Range up to the size of an axis, for Gather at positions known to be on the
    axis, for divisions by constant integers other than 0 and -1, and for element-wise operators
    whose operands are known to be broadcastable, except a Cast from or to strings.
    """
    if node.domain:
        return False
    if node.op in ("Shape", "Size"):
        return True
    if node.op == "Concat":
        return _joins_fixed_vectors(node, facts)
    if node.op == "Unsqueeze":
        axes = named_axes(facts, node)
        return axes is not None and len(set(axes)) == len(axes)
    if node.op == "Squeeze":
        return _removes_sizes_of_one(node, facts)
    if node.op == "Transpose":
        return _has_valid_permutation(node, facts)
    if node.op == "DequantizeLinear":
        return _has_fitting_scales(node, facts)
    if node.op == "Range":
        return _is_range_of_axis(node, facts)
    if node.op == "Gather":
        return _is_on_axis(node, facts, symbolic.nonnegative)
    known = [facts.of(t) for t in node.inputs if t.name]
    total_division = node.op == "Div" and known[0].dtype in FLOAT_OR_DOUBLE
    total_division |= node.op in ("Div", "Mod") and _divides_by_known_integers(node, facts)
    if node.op not in TOTAL_ELEMENTWISE and not total_division:
        return False
    if node.op == "Cast" and TensorProto.STRING in (known[0].dtype, int(node.attrs["to"])):
        return False
    shapes = [f.shape for f in known if f.shape is not None and f.dtype]
    return len(shapes) == len(known) and symbolic.broadcastable(shapes)


def _divides_by_known_integers(node: Node, facts: Facts) -> bool:
    """Whether the divisors are known to be neither 0 nor -1, by which the least integer has no
    quotient.
    """
    divisors = facts.constant(node.inputs[1])
    known = divisors is not None and divisors.dtype.kind in "iu"
    return known and not np.any((divisors == 0) | (divisors == -1))


def _removes_sizes_of_one(node: Node, facts: Facts) -> bool:
    """Whether a Squeeze names axes that are known to have size 1, or none."""
    shape, axes = facts.shape(node.inputs[0]), named_axes(facts, node)
    if axes is None:
        return "axes" not in node.attrs and optional(node.inputs, 1) is None
    return shape is not None and all(shape[axis] == 1 for axis in axes)


def _has_valid_permutation(node: Node, facts: Facts) -> bool:
    """Whether a Transpose gives each axis of its operand one place."""
    rank, order = facts.rank(node.inputs[0]), node.attrs.get("perm")
    return order is None or (rank is not None and sorted(order) == list(range(rank)))


def _has_fitting_scales(node: Node, facts: Facts) -> bool:
    """Whether a DequantizeLinear has one scale, or one for each index of an axis."""
    shape, *scales = (facts.shape(t) for t in node.inputs if t.name)
    if shape is None or node.attrs.get("block_size") or any(s != scales[0] for s in scales):
        return False
    if scales[0] == ():
        return True
    axis = int(node.attrs.get("axis", 1))
    return -len(shape) <= axis < len(shape) and scales[0] == (shape[axis],)


def _joins_fixed_vectors(node: Node, facts: Facts) -> bool:
    """Whether a Concat joins vectors of fixed lengths, which have no other axes that must agree."""
    shapes = [facts.shape(t) for t in node.inputs]
    are_fixed = all(s is not None and len(s) == 1 and isinstance(s[0], int) for s in shapes)
    return are_fixed and node.attrs.get("axis") in (0, -1)


def _is_range_of_axis(node: Node, facts: Facts) -> bool:
    """Whether a Range starts at a known number, and has at most as many elements as some axis.

    A longer Range may need more memory than there is.
    """
    start, limit, step = (facts.scalar(t) for t in node.inputs)
    if not isinstance(start, int) or start < 0 or not isinstance(step, int) or step < 1:
        return False
    if limit is None or isinstance(limit, int):
        return limit is not None and limit <= _SHORT_RANGE
    return symbolic.single_symbol(limit) is not None and symbolic.nonnegative(limit)


def cannot_fail_in_iteration(node: Node, facts: Facts) -> bool:
    """Whether the node never fails inside an iteration of the Loops around it.

    Beyond `cannot_fail`, holds for `Gather(x, i)` where x has an element for each iteration.
    """
    if node.op == "Gather" and not node.domain:
        return _is_on_axis(node, facts, lambda dim: nonnegative_in_iteration(facts, dim))
    return cannot_fail(node, facts)


def _is_on_axis(node: Node, facts: Facts, nonnegative: Callable[[Dim], bool]) -> bool:
    """Whether all positions of a Gather are in [-length, length) (ONNX operator specification)."""
    shape, positions = facts.shape(node.inputs[0]), facts.of(node.inputs[1]).values
    if not shape or positions is None:
        return False
    length = shape[int(node.attrs.get("axis", 0)) % len(shape)]
    return all(
        position is not None
        and nonnegative(symbolic.add(position, length))
        and nonnegative(symbolic.sub(symbolic.sub(length, position), 1))
        for position in positions
    )
