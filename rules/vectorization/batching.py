"""Batching rules: how an operator of a loop body works on all iterations at once.

A batched value holds the values of all iterations, stacked along a new axis 0; an invariant value
is the same in every iteration. A batching rule says how to compute an operator when at least one
operand is batched, as `vmap` does (Frostig, Johnson, Leary: Compiling machine learning programs via
high-level tracing, 2018). It declines by raising Miss.

Shapes, ranks and axes of a batched value are those of one slice, without the new axis 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Constant, Node, Tensor, optional
from ...rewrite.symbolic import Dim

T = TypeVar("T")
Build = Callable[[Builder, Sequence[Tensor]], list[Tensor]]
"""Builds an operator for all iterations from its batched and invariant operands."""


@dataclass(frozen=True)
class Plan:
    """How to compute a node for all iterations at once."""

    build: Build
    invariant: bool = False
    """Whether the results are the same in every iteration although an operand is not."""


class BatchedNode:
    """A node of a loop body as a batching rule sees it; a slot is the number of an operand."""

    def __init__(
        self, node: Node, facts: Facts, batched: Sequence[bool], runs_at_least_once: bool
    ) -> None:
        self.node = node
        self.facts = facts
        self.batched = batched
        """Which operands are batched."""
        self.runs_at_least_once = runs_at_least_once
        """Whether every run is known to have an iteration. Otherwise the node runs speculatively
        outside of the loop, and must not fail there on stacks of no slices."""

    # --- operands and attributes ---

    def operand(self, slot: int) -> Tensor:
        """The value of one iteration, or an invariant value."""
        tensor: Tensor = self.node.inputs[slot]
        return tensor

    def has_operand(self, slot: int) -> bool:
        """Whether an optional operand is given."""
        return optional(self.node.inputs, slot) is not None

    def optional_operands(self) -> list[int]:
        """The slots after the first that have an operand."""
        return [slot for slot in range(1, len(self.node.inputs)) if self.has_operand(slot)]

    def shape(self, slot: int) -> tuple[Dim, ...]:
        """The shape of one slice of an operand, or of an invariant operand."""
        return self._known_shape(self.operand(slot))

    def rank(self, slot: int) -> int:
        """The rank of one slice of an operand, or of an invariant operand."""
        return len(self.shape(slot))

    def result_shape(self) -> tuple[Dim, ...]:
        """The shape of one slice of the first result."""
        return self._known_shape(self.node.outputs[0])

    def _known_shape(self, tensor: Tensor) -> tuple[Dim, ...]:
        return self.need(self.facts.shape(tensor), "the rank of {} is not known", tensor)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or the default if the node does not have it."""
        value = self.node.attrs.get(name, default)
        return value.values if isinstance(value, Constant) else value

    def integers(self, slot: int, name: str = "") -> list[int]:
        """Integers given as a constant operand or, in older opsets, as an attribute.

        Returns [] where they are omitted.
        """
        if name and name in self.node.attrs:
            return [int(v) for v in np.ravel(self.node.attrs[name])]
        if not self.has_operand(slot):
            return []
        tensor = self.operand(slot)
        known = self.need(self.facts.constant(tensor), "{} is not a constant", tensor)
        return [int(v) for v in known.reshape(-1)]

    # --- conditions ---

    def need(self, fact: T | None, sentence: str, *values: object) -> T:
        """Returns the fact; raises Miss about this node if it is None or False."""
        if fact is None or fact is False:
            raise Miss(sentence, *values, at=self.node)
        return fact

    def need_axis(self, value: int, rank: int) -> int:
        """The axis as a number from 0; raises Miss if it is out of range."""
        self.need(-rank <= value < rank, "axis {} is outside rank {}", value, rank)
        return value % rank

    def need_only_first_batched(self) -> None:
        """Raises Miss if an operand other than the first is batched."""
        for slot, batched in enumerate(self.batched):
            differs = "{} differs from iteration to iteration"
            self.need(not batched or slot == 0, differs, self.operand(slot))

    def need_speculatable(self, is_safe: bool | None, hazard: str, *values: object) -> None:
        """Raises Miss if the loop may not run and the node is not known to succeed on no slices."""
        safe = self.runs_at_least_once or is_safe is True
        self.need(safe, hazard + ", and the loop may not run", *values)

    def need_broadcast(self, *shapes: Sequence[Dim]) -> None:
        """Raises Miss if the loop may not run and the shapes may not broadcast."""
        fit = symbolic.broadcastable(shapes)
        self.need_speculatable(fit, "the operands may not broadcast")

    def need_empty_reshapes(self) -> None:
        """Raises Miss for opsets in which Reshape cannot produce a computed size of 0."""
        self.need(self.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)


# --- the table ---

BatchingRule = Callable[[BatchedNode], Plan]
_TABLE: dict[str, BatchingRule] = {}


def batching_rule(*ops: str) -> Callable[[BatchingRule], BatchingRule]:
    """Registers the batching rule of operators of the standard domain."""

    def register(rule: BatchingRule) -> BatchingRule:
        for op in ops:
            _TABLE[op] = rule
        return rule

    return register


def batching_rule_of(node: Node) -> BatchingRule | None:
    """The batching rule of a node's operator; None if there is none."""
    return None if node.domain else _TABLE.get(node.op)


_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
_PRODUCT_COST = 3


def relative_cost(node: Node) -> int:
    """The gain of moving a node out of a body, in nodes that only copy or add.

    One large matrix product is faster than many small ones, so a product counts more than once.
    """
    return _PRODUCT_COST if node.op in _PRODUCTS else 1


# --- pieces of batching rules ---


def same_operator(op: BatchedNode, **attributes: Any) -> Build:
    """Builds the same operator from the operands as they are, with some attributes changed."""
    node = op.node
    merged = {**node.attrs, **attributes}

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return emit.outputs(node.op, operands, node.outputs, **merged)

    return build


def align_rank(emit: Builder, value: Tensor, batched: bool, rank: int, target: int) -> Tensor:
    """Raises the rank of the slices of a batched value to `target` by axes of size 1.

    The new axes come after axis 0, which holds the iterations. An invariant value broadcasts as it
    is.
    """
    if not batched or rank >= target:
        return value
    return emit.unsqueeze(value, range(1, 1 + target - rank))
