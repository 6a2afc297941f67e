"""What nobody needs: unread nodes, copies, casts to the same type, unread branch results."""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.graph.ir import Node, Tensor


class EliminateDeadNode(Rule):
    """A node whose results nobody reads goes."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) { u = Neg(x) y = Abs(x) }"
    spares = {"is read": "g (float[2] x) => (float[2] y) { y = Abs(x) }"}

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.index.is_unused(m.node), "a result is read")
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.remove(node)


class EliminateIdentity(Rule):
    """Identity, Cast to the same type, And with true and Or with false pass an operand on."""

    root = ("Identity", "Cast", "And", "Or")
    fires = "g (float[2] x) => (float[2] y) { u = Identity(x) y = Abs(u) }"
    spares = {
        "not the type": "g (int64[2] x) => (float[2] y) { u = Cast<to=1>(x) y = Abs(u) }",
        "a node of its own": "g (float[2] x) => (float[2] y) { y = Identity(x) }",
    }

    def match(self, m: Match) -> dict[str, Any]:
        source, copy = _passed_on(m), m.node.outputs[0]
        m.need(not m.index.is_unused(m.node), "nobody reads the copy")
        if m.index.is_model_output(copy):
            m.need(
                can_be_output(m.index, source),
                "`{}` is an output of the model and needs a node of its own",
                copy.name,
            )
        return {"node": m.node, "source": source}

    def apply(self, patch: Patch, node: Node, source: Tensor) -> None:
        patch.replace_node(node, [source])


def _passed_on(m: Match) -> Tensor:
    """The operand that equals the result; declines where there is none."""
    first: Tensor = m.node.inputs[0]
    if m.node.op == "Cast":
        m.need(
            m.facts.dtype(first) == int(m.node.attrs["to"]),
            "the operand has not the type it is cast to",
            at=first,
        )
    if m.node.op not in ("And", "Or"):
        return first
    neutral = m.node.op == "And"
    shape = m.facts.shape(m.node.outputs[0])
    for operand, other in ((first, m.node.inputs[1]), (m.node.inputs[1], first)):
        values = m.facts.of(other).values
        fixed = values is not None and all(v is neutral for v in values)
        if fixed and shape is not None and m.facts.shape(operand) == shape:
            return operand
    raise Miss("no operand leaves the other as it is", at=m.node)


class EliminateDeadBranchOutputs(Rule):
    """Results of an If that nobody reads are no longer computed."""

    root = "If"
    fires = """g (float[2] x, bool c) => (float[2] y) {
      y, z = If (c) <then_branch = t () => (float[2] a, float[2] b) { a = Exp(x) b = Neg(x) },
                     else_branch = e () => (float[2] p, float[2] q) { p = Abs(x) q = Log(x) }> }"""
    spares = {
        "every result is read": """g (float[2] x, bool c) => (float[2] y) {
      y = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) },
                  else_branch = e () => (float[2] p) { p = Abs(x) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        outputs = m.node.outputs
        keep = [slot for slot, t in enumerate(outputs) if m.index.use_count(t)]
        m.need(len(keep) < len(outputs), "every result is read")
        m.need(bool(keep), "no result is read at all")
        return {"node": m.node, "keep": keep}

    def apply(self, patch: Patch, node: Node, keep: list[int]) -> None:
        patch.drop_outputs(node, keep)
