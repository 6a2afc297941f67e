"""How an operator of a loop body works on all iterations at once: the table and what it shares.

A batched value holds one slice per iteration, stacked along a new axis 0; a uniform value is the
same in every iteration. A batching rule says how to compute an operator when at least one operand
is batched, the way `vmap` does (Frostig, Johnson, Leary: Compiling machine learning programs via
high-level tracing, 2018). It declines by raising Miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.symbolic import Dim

T = TypeVar("T")
Build = Callable[[Builder, Sequence[Tensor]], list[Tensor]]
"""Makes the operator for all iterations from its batched and uniform operands."""


@dataclass(frozen=True)
class Plan:
    """How to compute a node for all iterations at once."""

    build: Build
    uniform: bool = False
    """Whether the results are the same in every iteration although an operand is not."""


class Work:
    """A node of a loop body as a batching rule sees it; slots count the node's operands."""

    def __init__(self, node: Node, facts: Facts, batched: Sequence[bool], runs: bool) -> None:
        self.node = node
        self.facts = facts
        self.batched = batched
        """Which operands are batched."""
        self.runs = runs
        """Whether the loop surely takes a step. Otherwise what is computed in front of it must not
        fail."""

    def need(self, fact: T | None, sentence: str, *values: object) -> T:
        if fact is None or fact is False:
            raise Miss(sentence, *values, at=self.node)
        return fact

    def present(self, slot: int) -> bool:
        return slot < len(self.node.inputs) and bool(self.node.inputs[slot].name)

    def shape(self, slot: int) -> tuple[Dim, ...]:
        """The shape of one slice, or of a uniform value."""
        tensor = self.node.inputs[slot]
        shape = self.facts.shape(tensor)
        return self.need(shape, "the rank of {} is not known", tensor)

    def rank(self, slot: int) -> int:
        return len(self.shape(slot))

    def result_shape(self, number: int = 0) -> tuple[Dim, ...]:
        tensor = self.node.outputs[number]
        return self.need(self.facts.shape(tensor), "the rank of {} is not known", tensor)

    def attr(self, name: str, default: Any = None) -> Any:
        value = self.node.attrs.get(name, default)
        return value.values if isinstance(value, Constant) else value

    def constant(self, slot: int) -> np.ndarray:
        """The elements of an operand that is the same in every run."""
        tensor = self.node.inputs[slot]
        return self.need(self.facts.constant(tensor), "{} is not a constant", tensor)

    def ints(self, slot: int, name: str = "") -> list[int]:
        """Integers given as an operand or, in older opsets, as an attribute; [] where left out."""
        if name and name in self.node.attrs:
            return [int(v) for v in np.ravel(self.node.attrs[name])]
        return [int(v) for v in self.constant(slot).reshape(-1)] if self.present(slot) else []

    def axis(self, value: int, rank: int) -> int:
        """An axis of a slice, counted from the front."""
        self.need(-rank <= value < rank, "axis {} is outside rank {}", value, rank)
        return value % rank

    def only(self, *slots: int) -> None:
        """Declines when other operands than these are batched."""
        for slot, batched in enumerate(self.batched):
            self.need(
                not batched or slot in slots,
                "{} differs from iteration to iteration",
                self.operand(slot),
            )

    def operand(self, slot: int) -> Tensor:
        tensor: Tensor = self.node.inputs[slot]
        return tensor

    def must_run(self, sure: bool | None, sentence: str, *values: object) -> None:
        """Declines when computing may fail and the loop may not run, so that nothing fails now."""
        self.need(self.runs or sure is True, sentence + ", and the loop may not run", *values)

    def computes_shapes(self) -> None:
        """Declines where a Reshape to computed sizes has no way to say 0."""
        modern = self.facts.opset >= EMPTY_RESHAPES
        self.need(modern, "a size is open, and Reshape has no sizes of 0 before opset 14")

    def must_broadcast(self, *shapes: Sequence[Dim]) -> None:
        self.must_run(symbolic.broadcastable(shapes), "the operands may not fit each other")


_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_PRODUCT_GAIN = 3
"""How many nodes a product in the body is worth: one large product is faster than many small."""


def worth(node: Node) -> int:
    """How many nodes the body gets rid of with this one, in time."""
    return _PRODUCT_GAIN if node.op in _PRODUCTS else 1


Batching = Callable[[Work], Plan]
_TABLE: dict[str, Batching] = {}


def batching(*ops: str) -> Callable[[Batching], Batching]:
    """Registers the batching rule of operators of the standard domain."""

    def register(rule: Batching) -> Batching:
        for op in ops:
            _TABLE[op] = rule
        return rule

    return register


def rule_for(node: Node) -> Batching | None:
    return None if node.domain else _TABLE.get(node.op)


def aligned(emit: Builder, value: Tensor, batched: bool, rank: int, wanted: int) -> Tensor:
    """A batched operand of `rank` axes a slice with axes of size 1 in front of them, so that slices
    have `wanted` axes and the time axis stays in front. What is uniform broadcasts as it is.
    """
    if not batched or rank >= wanted:
        return value
    return emit.unsqueeze(value, range(1, 1 + wanted - rank))


def as_is(work: Work, **attrs: Any) -> Build:
    """The same operator on the operands as they come, with some attributes changed."""
    node = work.node
    merged = {**node.attrs, **attrs}

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return emit.outputs(node.op, operands, node.outputs, **merged)

    return build
