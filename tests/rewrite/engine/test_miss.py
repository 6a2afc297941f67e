"""How messages name nodes."""

from __future__ import annotations

from looplift.rewrite.engine.miss import describe
from looplift.rewrite.graph.ir import Node, Variable
from looplift.rewrite.storage.model import import_model

from ...small_models import parse


def test_a_node_without_a_name_is_named_by_its_results() -> None:
    results = [Variable(name) for name in "abcd"]
    assert describe(Node("Split", outputs=results[:1])) == "Split of `a`"
    assert describe(Node("Split", outputs=results)) == "Split of `a`, `b` and 2 more"
    assert describe(Node("Split", name="n", outputs=results)) == "Split `n`"


def test_results_that_a_rewrite_adds_do_not_change_the_name() -> None:
    model = import_model(
        parse("g (float[4] x) => (float[2] a, float[2] b) { a, b = Split(x) }", 13)
    )
    (node,) = model.graph.nodes
    node.outputs.insert(0, Variable("merged"))
    assert describe(node) == "Split of `a`, `b`"
    node.outputs[:] = [Variable("other")]
    assert describe(node) == "Split of `other`"
