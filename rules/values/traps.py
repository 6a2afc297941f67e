"""Traps: replaces nodes of bodies that always fail by a form that onnxruntime can load.

y = Reshape(six_elements, [7])   ->   y = SequenceAt(SequenceEmpty(), 0)

A model with such a node can still run, if its loop has no iteration or its If takes the other
branch. But onnxruntime does not load a model in which type inference or constant folding fails, and
a rewrite makes more shapes and constants known. onnxruntime knows neither the shape nor the elements
of a trap.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.miss import describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.facts.fact import BFLOAT16
from ...rewrite.graph.ir import Tensor
from .later_failures import downstream


@dataclass(frozen=True)
class CertainFailure:
    """A node that always fails."""

    reason: str
    types: list[int]
    """The element type of each result; 0 for a result that nothing reads."""
    returned: list[tuple[Tensor, int]]
    """The values that the body would return after the node, each with its element type."""


class FailingNodeToTrap(Rule[CertainFailure]):
    """Replaces a node of a body that always fails by a read of an empty sequence."""

    root = ANY
    fires = """g (float[6] x, float[N] rows) => (float[?] y) <int64[1] shape = {7}> {
      n = Size(rows) y = Loop(n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
        d = Identity(c) r = Reshape(x, shape) }> }"""
    spares = {
        "may succeed": """g (float[N] x, int64 n) => (float[?] y) <int64[1] shape = {7}> {
      y = Loop(n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
        d = Identity(c) r = Reshape(x, shape) }> }""",
        "other branch": """g (float[6] x, bool c) => (float[?] y) <int64[1] shape = {7}> {
      y = If(c) <then_branch = t () => (float[?] a) { a = Reshape(x, shape) },
                 else_branch = e () => (float[?] b) { b = Neg(x) }> }""",
        "is a trap": """g (float[6] x, int64 n) => (float[?] y) <int64 first = {0}> {
      y = Loop(n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
        d = Identity(c) none = SequenceEmpty() r = SequenceAt(none, first) }> }""",
    }

    def match(self, m: Match) -> CertainFailure:
        node, index = m.node, m.index
        owner = m.need(index.owner(m.graph()), "it is not in a body: if it fails, every run does")
        reason = m.need(m.facts.failure(node), "it may succeed")
        m.need(node.op != "SequenceAt", "it is a trap already")
        m.need(not index.is_unused(node), "nothing reads the result")
        only_shapes = "only the shape of the result is read: onnxruntime may not compute the rest"
        m.need(index.is_computed(node), only_shapes)
        m.need(
            m.options.strict or owner.op != "If",
            "the If can take the other branch instead",
            at=owner,
        )
        facts = [m.facts.of(tensor) if index.use_count(tensor) else None for tensor in node.outputs]
        for tensor, fact in zip(node.outputs, facts):
            m.need(
                fact is None or (fact.kind == "tensor" and fact.dtype not in (0, BFLOAT16)),
                "no trap has the type of {}",
                tensor,
            )
        types = [0 if fact is None else fact.dtype for fact in facts]
        return CertainFailure(reason, types, _returned_after(m))

    def apply(self, patch: Patch, found: CertainFailure) -> None:
        node = patch.root
        patch.log.append(f"{describe(node)} always fails: {found.reason}")
        pairs = zip(node.outputs, found.types)
        traps = [_trap(patch, output, dtype) if dtype else None for output, dtype in pairs]
        for returned, dtype in found.returned:
            patch.replace(returned, _trap(patch, returned, dtype))
        patch.replace_node(node, traps)
        patch.toward_normal_form()


def _returned_after(m: Match) -> list[tuple[Tensor, int]]:
    """The results of later nodes that the body returns; no run computes them.

    The body may declare false shapes for them, which contradict those of other nodes.
    """
    body, root = m.graph(), m.node
    # What is downstream may also come earlier, in the next iteration.
    later = [
        node
        for node in downstream(m.index, root)
        if m.index.graph_of(node) is body and node.order > root.order
    ]
    computed = {tensor for node in later for tensor in node.outputs}
    facts = {tensor: m.facts.of(tensor) for tensor in body.outputs if tensor in computed}
    return [
        (tensor, fact.dtype)
        for tensor, fact in facts.items()
        if fact.kind == "tensor" and fact.dtype not in (0, BFLOAT16)
    ]


def _trap(patch: Patch, like: Tensor, dtype: int) -> Tensor:
    emit = patch.builder(like)
    return emit("SequenceAt", emit("SequenceEmpty", dtype=dtype), emit.scalar(0))
