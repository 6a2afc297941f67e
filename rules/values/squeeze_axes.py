"""Infers the axes of a Squeeze that does not name them, if only one choice lets a run succeed.

    y = Squeeze(x)                     # x has shape [N, 1, 3]
    a, b, c = Split<axis=1>(y)         # y must have an axis 1, so N is not 1: Squeeze(x, [1])

Every other choice makes a later node fail whatever the inputs are, so every run that succeeds has
sizes that make this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ...rewrite import symbolic
from ...rewrite.engine.miss import describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.ir import optional
from ...rewrite.symbolic import Dim
from .later_failures import later_failure

_MOST_UNKNOWN = 3
"""The most axes whose size may or may not be 1: each doubles the number of choices."""


@dataclass(frozen=True)
class SqueezedAxes:
    """The axes that a Squeeze removes in every run that succeeds."""

    axes: list[int]
    failures: list[str]
    """The nodes that fail for other choices, with the reasons."""


class InferSqueezeAxes(Rule[SqueezedAxes]):
    """Names the axes of a Squeeze if later operators fail for every other choice."""

    root = "Squeeze"
    promise = Promise(
        assumes="a run succeeds only with these axes",
        accepts="those in which another axis has size 1",
    )
    fires = """g (float[N,1,3] x) => (float[N,1] a, float[N,2] b) <int64[2] parts = {1, 2}> {
      y = Squeeze(x)  a, b = Split<axis=1>(y, parts) }"""
    spares = {
        "more than one choice": "g (float[N,1,3] x) => (float[K] z) { y = Squeeze(x) z = Exp(y) }",
        "it names its axes": """g (float[N,1,3] x) => (float[N,3] y) <int64[1] one = {1}> {
      y = Squeeze(x, one) }""",
    }

    def match(self, m: Match) -> SqueezedAxes:
        node, x = m.node, m.node.inputs[0]
        m.need(not m.options.strict, "--strict: a run that fails must still fail")
        named = "axes" in node.attrs or optional(node.inputs, 1) is not None
        m.need(not named, "it names its axes")
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x)
        ones = [axis for axis, dim in enumerate(shape) if dim == 1]
        unknown = [axis for axis, dim in enumerate(shape) if symbolic.eq(dim, 1) is None]
        m.need(len(unknown) <= _MOST_UNKNOWN, "{} axes may have size 1", len(unknown))
        failures = {
            axes: later_failure(m, {node.outputs[0]: _squeezed(m.facts.of(x), shape, axes)})
            for axes in ((*ones, *more) for more in _subsets(unknown))
        }
        possible = [axes for axes, failure in failures.items() if failure is None]
        m.need(bool(possible), "later operators fail for every choice of axes")
        m.need(len(possible) == 1, "later operators succeed for more than one choice of axes")
        reasons = {failure for failure in failures.values() if failure is not None}
        return SqueezedAxes(sorted(possible[0]), sorted(reasons))

    def apply(self, patch: Patch, found: SqueezedAxes) -> None:
        node, output = patch.root, patch.root.outputs[0]
        if found.failures:
            others = f"otherwise every run fails at {' or '.join(found.failures)}"
            patch.note(f"{describe(node)} always removes the axes {found.axes}: {others}")
        patch.replace_node(node, [patch.builder(output).squeeze(node.inputs[0], found.axes)])
        patch.toward_normal_form()


def _subsets(axes: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(axes) + 1):
        yield from combinations(axes, count)


def _squeezed(x: Fact, shape: tuple[Dim, ...], axes: tuple[int, ...]) -> Fact:
    """The fact of a value without some of its axes."""
    return Fact(x.dtype, tuple(dim for axis, dim in enumerate(shape) if axis not in axes))
