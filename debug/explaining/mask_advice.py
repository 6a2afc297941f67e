"""Which mask a user could vouch for where a recurrence waits for a length."""

from __future__ import annotations

from collections.abc import Container, Iterator

from onnx import TensorProto

from ...commands.arguments import mask_option
from ...rewrite.engine.engine import Engine
from ...rewrite.engine.reasons import Reason
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rules.recurrence.length_masks import UNKNOWN_MASK, elementwise_origins

_MOVES = frozenset({"Gather", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_ACTS = frozenset({"Add", "Cast", "Equal", "Greater", "Less", "Mul", "Neg", "Not", "Sub"})
"""What a mask goes through before it is multiplied with, or chooses."""
_MOST_AXES = 2
"""Of a mask: the batch and the time."""


def mask_options(engine: Engine, reason: Reason, names: Container[str]) -> list[str]:
    """`--prefix-mask "m axis 1"` for the masks that a reason says are not known to end with a
    length, as far as they bear one of these names, with the axis along which the loop steps.
    """
    if UNKNOWN_MASK not in reason.sentence or not isinstance(reason.place, Node):
        return []
    steps = counted_loop(engine.facts, reason.place)
    reads = () if steps is None else steps.reads
    axes = {t: axis for read in reads for t, axis, _ in elementwise_origins(engine.facts, read)}
    masks = (_mask_behind(engine, value, names) for value in _values(reason))
    return [mask_option(mask.name, axes[mask]) for mask in masks if mask in axes]


def _values(reason: Reason) -> Iterator[Tensor]:
    for value in reason.values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Node):
            yield from value.inputs[: 1 if value.op == "Where" else None]


def _mask_behind(engine: Engine, tensor: Tensor, names: Container[str]) -> Tensor | None:
    """The first value of the main graph from which another one is computed element by element that
    is boolean, or an input.
    """
    index, facts, found = engine.index, engine.facts, None
    while True:
        tensor = _sequence(engine, tensor)
        node = index.producer(tensor)
        is_input = node is None and not isinstance(tensor, Constant)
        wide = [n for n in facts.shape(tensor) or () if n != 1]
        may_be = (is_input or facts.dtype(tensor) == TensorProto.BOOL) and len(wide) <= _MOST_AXES
        if may_be and index.home(tensor) is index.root and tensor.name in names:
            found = tensor
        if node is None or node.domain or node.op not in _ACTS | _MOVES:
            return found
        operands = [t for t in node.inputs[: 1 if node.op in _MOVES else None] if t.name]
        open_ones = {t for t in operands if not facts.is_constant(t)}
        if len(open_ones) != 1:
            return found
        (tensor,) = open_ones


def _sequence(engine: Engine, tensor: Tensor) -> Tensor:
    """What a Scan reads slice by slice, for one of these slices; other values as they are."""
    home = engine.index.home(tensor)
    owner = None if home is None else engine.index.owner(home)
    steps = None if owner is None else counted_loop(engine.facts, owner)
    reads = () if steps is None else steps.reads
    return next((read.sequence for read in reads if read.slice is tensor), tensor)
