"""Ifs that only select: both values are there or cost next to nothing.

y = If(c) <then { a }, else { b }>   ->   y = Where(c, a, b)
"""

from __future__ import annotations

from typing import Any

import onnx

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import BOOL
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.symbolic import Dim

_SELECTABLE = frozenset(
    getattr(onnx.TensorProto, name)
    for name in [
        "FLOAT",
        "DOUBLE",
        "FLOAT16",
        "INT8",
        "INT32",
        "INT64",
        "UINT8",
        "UINT32",
        "STRING",
    ]
)
"""Types onnxruntime has a Where for."""
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Where"})
"""Operators that read a single element of whatever rank the same way, beside a larger operand."""
Shape = tuple[Dim, ...]
_MOST_WORK = 4
"""Elements that both branches together may compute: less than the cost of entering a branch."""


class IfToWhere(Rule):
    """An If between equally shaped values that are at hand becomes a Where."""

    root = "If"
    fires = """g (float[3] x, float[3] z, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Identity(x) },
                  else_branch = e () => (float[3] b) { b = Identity(z) }> }"""
    spares = {
        "shape": """g (float[3] x, float[N] z, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Identity(x) },
                  else_branch = e () => (float[N] b) { b = Identity(z) }> }""",
        "work": """g (float[3] x, float[3] z, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(z) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.branches()
        condition = m.facts.shape(view.condition)
        m.need(
            condition is not None and _is_one(condition),
            "the condition is not known to be one element",
            at=view.condition,
        )
        logical: list[bool] = []
        for output, a, b in zip(m.node.outputs, view.then.outputs, view.orelse.outputs):
            first, second = m.facts.of(a), m.facts.of(b)
            m.need(first.kind == second.kind == "tensor", "{} is not a tensor", output)
            m.need(first.shape is not None, "the shape of `{}` is not known", a.name, at=a)
            shapes = (condition or (), first.shape or (), second.shape or ())
            m.need(
                first.dtype == second.dtype and _gives_the_same(m, output, *shapes),
                "`{}` has shape {} and `{}` {}",
                a.name,
                first.shape,
                b.name,
                second.shape,
                at=m.node,
            )
            logical.append(first.dtype == BOOL)
            m.need(
                first.dtype in _SELECTABLE or logical[-1],
                "onnxruntime has no Where for the type of `{}`",
                a.name,
                at=a,
            )
        work = sum(_work(m, branch) for branch in (view.then, view.orelse))
        too_much = "the branches do too much work to run both: {} numbers, more than {}"
        m.need(work <= _MOST_WORK, too_much, work, _MOST_WORK)
        return {"node": m.node, "branches": (view.then, view.orelse), "logical": logical}

    def apply(
        self, patch: Patch, node: Node, branches: tuple[Graph, Graph], logical: list[bool]
    ) -> None:
        then, other = (patch.inline(branch) for branch in branches)
        condition = node.inputs[0]
        selected = [
            (_select_by_logic if is_bool else _select)(patch, condition, a, b, output)
            for output, a, b, is_bool in zip(node.outputs, then, other, logical)
        ]
        patch.replace_node(node, selected)


def _gives_the_same(m: Match, output: Tensor, condition: Shape, then: Shape, other: Shape) -> bool:
    """Whether Where gives the shape of both branches, or one that makes no difference: a single
    element, of whatever rank, to readers that broadcast it to something of no lower rank.
    """
    if then == other:
        return len(condition) <= len(then)
    if not (_is_one(then) and _is_one(other)):
        return False
    rank = max(map(len, (condition, then, other)))
    return all(_broadcasts(m, reader, output, rank) for reader, _ in m.index.uses(output))


def _broadcasts(m: Match, reader: Node | Graph, value: Tensor, rank: int) -> bool:
    if isinstance(reader, Graph) or reader.domain or reader.op not in _BROADCASTING:
        return False
    ranks = [m.facts.rank(t) for t in reader.inputs if t is not value]
    return any(other is not None and other >= rank for other in ranks)


def _is_one(shape: Shape) -> bool:
    return all(dim == 1 for dim in shape)


def _select(patch: Patch, condition: Tensor, a: Tensor, b: Tensor, output: Tensor) -> Tensor:
    return patch.node("Where", [condition, a, b], like=[output])[0]


def _select_by_logic(
    patch: Patch, condition: Tensor, a: Tensor, b: Tensor, output: Tensor
) -> Tensor:
    """onnxruntime has no Where for bools."""
    otherwise = patch.node("Not", [condition], like=[condition])[0]
    first = patch.node("And", [condition, a], like=[output])[0]
    second = patch.node("And", [otherwise, b], like=[output])[0]
    return patch.node("Or", [first, second], like=[output])[0]


def _work(m: Match, branch: Graph) -> int:
    """Elements a branch computes; declines where a node may fail or has no known size."""
    total = 0
    for node in m.index.nodes(branch):
        if not cannot_fail(node, m.facts):
            raise Miss("{} may fail: it must not run where its branch is not taken", node, at=node)
        for output in node.outputs if node.op != "Identity" else ():
            shape = m.facts.shape(output)
            count = None if shape is None else symbolic.product(shape)
            if not isinstance(count, int):
                raise Miss("it is not known how much work {} is", output, at=output)
            total += count
    return total
