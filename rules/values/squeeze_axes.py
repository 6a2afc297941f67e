"""A Squeeze of all axes of size 1, where only one choice of them lets a run succeed.

    y = Squeeze(x)                     # x has shape [N, 1, 3]
    a, b, c = Split<axis=1>(y)         # y must have an axis 1, so N is not 1: Squeeze(x, [1])

Every choice but one makes a later node fail whatever the inputs are; every run that succeeds has
sizes that make that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.miss import describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.ir import Node
from ...rewrite.symbolic import Dim
from ..branches.demanded_ranks import later_failure

_MOST_OPEN = 3
"""Axes whose size may be 1: each doubles the number of choices."""


class InferSqueezeAxes(Rule):
    """A Squeeze without axes names them where later operators succeed for one choice only."""

    root = "Squeeze"
    fires = """g (float[N,1,3] x) => (float[N,1] a, float[N,2] b) <int64[2] parts = {1, 2}> {
      y = Squeeze(x)  a, b = Split<axis=1>(y, parts) }"""
    spares = {
        "more than one choice": "g (float[N,1,3] x) => (float[K] z) { y = Squeeze(x) z = Exp(y) }",
        "it names its axes": """g (float[N,1,3] x) => (float[N,3] y) <int64[1] one = {1}> {
      y = Squeeze(x, one) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(not m.options.strict, "--strict: no choice of axes is ruled out by failing")
        named = "axes" in node.attrs or (len(node.inputs) > 1 and node.inputs[1].name)
        m.need(not named, "it names its axes")
        shape = m.need(m.facts.shape(node.inputs[0]), "the rank of the operand is not known")
        ones = [axis for axis, dim in enumerate(shape) if dim == 1]
        open_ = [axis for axis, dim in enumerate(shape) if symbolic.eq(dim, 1) is None]
        m.need(len(open_) <= _MOST_OPEN, "{} axes may have size 1", len(open_))
        x = m.facts.of(node.inputs[0])
        choices = [(*ones, *more) for more in _subsets(open_)]
        failures = {
            axes: later_failure(m, {node.outputs[0]: _squeezed(x, shape, axes)}) for axes in choices
        }
        left = [axes for axes, failure in failures.items() if failure is None]
        m.need(len(left) == 1, "later operators succeed for more than one choice of axes")
        reasons = {failure for failure in failures.values() if failure is not None}
        return {"node": node, "axes": sorted(left[0]), "reasons": sorted(reasons)}

    def apply(self, patch: Patch, node: Node, axes: list[int], reasons: list[str]) -> None:
        output = node.outputs[0]
        if reasons:
            others = f"otherwise every run fails at {' or '.join(reasons)}"
            patch.note(f"{describe(node)} always drops the axes {axes}: {others}")
        patch.replace_node(node, [patch.builder(output).squeeze(node.inputs[0], axes)])
        patch.toward_normal_form()


def _subsets(axes: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(axes) + 1):
        yield from combinations(axes, count)


def _squeezed(x: Fact, shape: tuple[Dim, ...], axes: tuple[int, ...]) -> Fact:
    return Fact(x.dtype, tuple(dim for axis, dim in enumerate(shape) if axis not in axes))
