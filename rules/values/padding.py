"""Padding that a convolution can do itself.

p = Pad(x, [0, 0, 1, 0, 0, 2])   y = Conv(p, w)   ->   y = Conv<pads = [1, 2]>(x, w)

Exporters write a Pad before each convolution whose padding is computed or asymmetric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import attribute_or_input
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor, optional


def pad_amounts(facts: Facts, pad: Node, rank: int) -> list[int] | None:
    """The elements that a Pad adds before all axes, and then after all; None if not known."""
    pads = attribute_or_input(pad, "pads", 1, facts.constant)
    axes = list(range(rank))
    chosen = optional(pad.inputs, 3)
    if chosen is not None:
        known = facts.constant(chosen)
        if known is None or not all(-rank <= axis < rank for axis in known):
            return None
        axes = [int(axis) % rank for axis in known]
        if len(set(axes)) < len(axes):
            return None
    if pads is None or len(pads) != 2 * len(axes):
        return None
    amounts = [0] * (2 * rank)
    for place, axis in enumerate(axes):
        amounts[axis] = int(pads[place])
        amounts[rank + axis] = int(pads[len(axes) + place])
    return amounts


@dataclass(frozen=True)
class PaddedConvolution:
    """A Conv of a padded value."""

    operand: Tensor
    """The value before it is padded."""
    pads: list[int]
    """All padding of the spatial axes, as the attribute `pads` of Conv has it."""


class FoldPadIntoConv(Rule[PaddedConvolution]):
    """Folds a Pad with zeros into the Conv that reads it."""

    root = "Conv"
    promise = Promise(
        rounds="sums that leave out products with padding",
        nonfinite="an infinite or NaN weight times padding",
    )
    fires = """g (float[B,2,T] x, float[3,2,2] w, float[3] b) => (float[B,3,L] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}> {
      p = Pad(x, pads) y = Conv<pads = [1, 0]>(p, w, b) }"""
    spares = {
        "not computed by Pad": """g (float[B,2,T] x, float[3,2,2] w) => (float[B,3,L] y) { y = Conv(x, w) }""",
        "edge": """g (float[B,2,8] x, float[3,2,2] w) => (float[B,3,L] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}> {
      p = Pad<mode = "edge">(x, pads) y = Conv(p, w) }""",
        "may differ from 0": """g (float[B,2,T] x, float one, float[3,2,2] w) => (float[B,3,L] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}> {
      p = Pad(x, pads, one) y = Conv(p, w) }""",
        "are not known": """g (float[B,2,T] x, int64[6] pads, float[3,2,2] w) => (float[B,3,L] y) {
      p = Pad(x, pads) y = Conv(p, w) }""",
        "removes elements": """g (float[B,2,8] x, float[3,2,2] w) => (float[B,3,L] y) <int64[6] pads = {0, 0, 1, 0, 0, -2}> {
      p = Pad(x, pads) y = Conv(p, w) }""",
        "batch or the channels": """g (float[B,2,T] x, float[3,3,2] w) => (float[B,3,L] y) <int64[6] pads = {0, 1, 1, 0, 0, 2}> {
      p = Pad(x, pads) y = Conv(p, w) }""",
        "SAME_UPPER": """g (float[B,2,T] x, float[3,2,2] w) => (float[B,3,L] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}> {
      p = Pad(x, pads) y = Conv<auto_pad = "SAME_UPPER", strides = [2]>(p, w) }""",
    }  # fmt: skip

    def match(self, m: Match) -> PaddedConvolution:
        padded, weights = m.node.inputs[:2]
        pad = m.need(m.producer(padded, "Pad"), "{} is not computed by Pad", padded, at=padded)
        mode = pad.attrs.get("mode", "constant")
        m.need(mode == "constant", "its operand is padded by mode {}", mode, at=pad)
        fills_zeros = _fills_zeros(m.facts, pad)
        m.need(fills_zeros, "the value that {} is padded with may differ from 0", padded, at=pad)
        rank = m.need(m.facts.rank(weights), "the rank of {} is not known", weights, at=weights)
        amounts = m.need(
            pad_amounts(m.facts, pad, rank), "the amounts of padding are not known", at=pad
        )
        m.need(min(amounts) >= 0, "Pad removes elements", at=pad)
        before, after = amounts[:rank], amounts[rank:]
        m.need(not any(before[:2] + after[:2]), "Pad also pads the batch or the channels", at=pad)
        automatic = m.node.attrs.get("auto_pad", "NOTSET")
        m.need(
            automatic in ("NOTSET", "VALID"), "its own padding depends on its input: {}", automatic
        )
        own = m.node.attrs.get("pads", [0] * (2 * rank - 4))
        m.need(len(own) == 2 * rank - 4, "its pads are not two for each axis")
        m.need(automatic == "NOTSET" or not any(own), "its pads contradict auto_pad VALID")
        pads = [int(a) + b for a, b in zip(own, before[2:] + after[2:], strict=True)]
        return PaddedConvolution(pad.inputs[0], pads)

    def apply(self, patch: Patch, found: PaddedConvolution) -> None:
        node = patch.root
        attrs = {key: value for key, value in node.attrs.items() if key != "auto_pad"}
        emit = patch.builder(node.outputs[0])
        result = emit(node.op, found.operand, *node.inputs[1:], **{**attrs, "pads": found.pads})
        patch.replace_node(node, [result])
        patch.toward_normal_form()


def _fills_zeros(facts: Facts, pad: Node) -> bool:
    """Whether a Pad is known to add zeros; before opset 11 the value is an attribute."""
    if "value" in pad.attrs:
        return float(pad.attrs["value"]) == 0
    value = optional(pad.inputs, 2)
    known = None if value is None else facts.constant(value)
    return value is None or (known is not None and not np.any(known))
