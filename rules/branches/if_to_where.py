"""Ifs that only select between values that exist already or cost next to nothing.

y = If(c) <then { a }, else { b }>   ->   y = Where(c, a, b)
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import BOOL
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.symbolic import Dim

_SELECTABLE = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.INT8,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT32,
        TensorProto.STRING,
    }
)
"""The element types for which onnxruntime has a Where."""
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Where"})
"""Operators that give the same result for a single element of any rank beside an operand of higher
rank."""
_MOST_WORK = 4
"""The most elements that both branches together may compute: fewer cost less than a branch."""
Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Selection:
    """An If that only selects."""

    logical: list[bool]
    """For each output, whether it holds bools, for which onnxruntime has no Where."""


class IfToWhere(Rule[Selection]):
    """Turns an If between cheap values of equal shape into a Where."""

    root = "If"
    fires = """g (float[3] x, float[3] z, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Identity(x) },
                  else_branch = e () => (float[3] b) { b = Identity(z) }> }"""
    spares = {
        "shape": """g (float[3] x, float[N] z, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Identity(x) },
                  else_branch = e () => (float[N] b) { b = Identity(z) }> }""",
        "too much work": """g (float[3] x, float[3] z, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(z) }> }""",
    }

    def match(self, m: Match) -> Selection:
        view = m.branches()
        condition = m.facts.shape(view.condition)
        single = "the condition is not known to be a single element"
        condition = m.need(condition, single, at=view.condition)
        m.need(_is_single(condition), single, at=view.condition)
        logical: list[bool] = []
        for output, a, b in zip(m.node.outputs, view.then.outputs, view.orelse.outputs):
            first, second = m.facts.of(a), m.facts.of(b)
            m.need(first.kind == second.kind == "tensor", "{} is not a tensor", output)
            then = m.need(first.shape, "the shape of {} is not known", a, at=a)
            other = m.need(second.shape, "the shape of {} is not known", b, at=b)
            same = first.dtype == second.dtype
            m.need(
                same and _where_has_shape(m, output, condition, then, other),
                "{} has shape [{}] and {} has shape [{}]",
                a,
                then,
                b,
                other,
            )
            logical.append(first.dtype == BOOL)
            m.need(
                first.dtype in _SELECTABLE or logical[-1],
                "onnxruntime has no Where for the type of {}",
                a,
                at=a,
            )
        work = sum(_work(m, branch) for branch in (view.then, view.orelse))
        m.need(
            work <= _MOST_WORK,
            "running both branches is too much work: they compute {} elements, more than {}",
            work,
            _MOST_WORK,
        )
        return Selection(logical)

    def apply(self, patch: Patch, found: Selection) -> None:
        node = patch.root
        then, other = (patch.inline(node.attrs[name]) for name in ("then_branch", "else_branch"))
        selected = [
            (_select_bools if is_bool else _select)(patch.builder(output), node.inputs[0], a, b)
            for output, a, b, is_bool in zip(node.outputs, then, other, found.logical)
        ]
        patch.replace_node(node, selected)


def _where_has_shape(m: Match, output: Tensor, condition: Shape, then: Shape, other: Shape) -> bool:
    """Whether a Where has the shape of the If's output, or another one that readers broadcast alike.

    A single element of any rank broadcasts alike to an operand of at least that rank.
    """
    if then == other:
        return len(condition) <= len(then)
    if not (_is_single(then) and _is_single(other)):
        return False
    rank = max(map(len, (condition, then, other)))
    return all(_broadcasts(m, reader, output, rank) for reader, _ in m.index.uses(output))


def _broadcasts(m: Match, reader: Node | Graph, value: Tensor, rank: int) -> bool:
    if isinstance(reader, Graph) or reader.domain or reader.op not in _BROADCASTING:
        return False
    ranks = [m.facts.rank(t) for t in reader.inputs if t is not value]
    return any(other is not None and other >= rank for other in ranks)


def _is_single(shape: Shape) -> bool:
    """Whether a tensor of this shape has one element."""
    return all(dim == 1 for dim in shape)


def _select(emit: Builder, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return emit("Where", condition, a, b)


def _select_bools(emit: Builder, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    (otherwise,) = emit.outputs("Not", [condition], [condition])
    return emit("Or", emit("And", condition, a), emit("And", otherwise, b))


def _work(m: Match, branch: Graph) -> int:
    """The number of elements that a branch computes.

    Raises Miss if a node may fail or computes an unknown number of elements.
    """
    total = 0
    for node in m.index.nodes(branch):
        if not cannot_fail(node, m.facts):
            raise Miss("{} may fail: it must not run unless its branch is taken", node, at=node)
        for output in node.outputs if node.op != "Identity" else ():
            shape = m.facts.shape(output)
            count = None if shape is None else symbolic.product(shape)
            if not isinstance(count, int):
                raise Miss("the number of elements of {} is not known", output, at=output)
            total += count
    return total
