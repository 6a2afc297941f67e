"""Def-use chains, the nesting of graphs, and the order of nodes."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.graph.index import Index, Use
from looplift.rewrite.graph.ir import SPACING, Graph, Node, Tensor, bodies
from looplift.rewrite.storage.model import import_model

from ...small_models import parse
from ..fact_oracle import value
from ..graph_checks import assert_consistent

TEXT = """g (float[3] x, bool c, int64 m) => (float[3] y, float[3] u) <float[3] k = {1, 2, 3}> {
    u = Exp(x)
    v = If (c) <then_branch = t () => (float[3] a) <float[3] w = {4, 5, 6}> { p = Mul(u, w) a = Add(p, p) },
                else_branch = e () => (float[3] b) {
        b = Loop (m, , x) <body = body (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) h = Add(s, u) so = Mul(h, k) }> }>
    y = Sin(v) }"""


@pytest.fixture
def engine() -> Engine:
    return Engine(import_model(parse(TEXT, 21, 10)), ())


def _value(engine: Engine, name: str) -> Tensor:
    return value(engine.facts, name)


def _node(engine: Engine, name: str) -> Node:
    node = engine.index.producer(_value(engine, name))
    assert node is not None
    return node


def _body(engine: Engine, name: str, attribute: str) -> Graph:
    graph: Graph = _node(engine, name).attrs[attribute]
    return graph


def test_is_consistent(engine: Engine) -> None:
    assert_consistent(engine.index)


def test_readers(engine: Engine) -> None:
    index = engine.index
    u, p = _value(engine, "u"), _value(engine, "p")
    assert {node.op for node in index.consumers(u)} == {"Mul", "Add"}
    assert index.use_count(u) == 3  # both nodes and the main graph
    assert index.uses(p) == [Use(_node(engine, "a"), 0), Use(_node(engine, "a"), 1)]
    assert index.consumers(p) == [_node(engine, "a")]
    assert index.is_model_output(u)
    assert not index.is_model_output(_value(engine, "a"))
    assert index.is_unused(_node(engine, "co")) is False


def test_homes_and_owners(engine: Engine) -> None:
    index = engine.index
    loop_body = _body(engine, "b", "body")
    assert index.home(_value(engine, "k")) is index.root
    assert index.home(_value(engine, "w")) is _body(engine, "v", "then_branch")
    assert index.home(_value(engine, "s")) is loop_body
    assert index.producer(_value(engine, "s")) is None
    assert index.owner(loop_body) is _node(engine, "b")
    assert index.owner(index.root) is None
    assert index.graph_of(_node(engine, "h")) is loop_body
    assert index.depth(loop_body) == 2


def test_enclosing_graphs(engine: Engine) -> None:
    index = engine.index
    loop_body, other = _body(engine, "b", "body"), _body(engine, "v", "else_branch")
    assert list(index.ancestors(loop_body)) == [loop_body, other, index.root]
    assert index.encloses(index.root, loop_body)
    assert index.encloses(other, loop_body)
    assert index.encloses(loop_body, loop_body)
    assert not index.encloses(_body(engine, "v", "then_branch"), loop_body)
    h = _node(engine, "h")
    assert index.ancestor_in(h, index.root) is _node(engine, "v")
    assert index.ancestor_in(h, other) is _node(engine, "b")
    assert index.ancestor_in(h, loop_body) is h
    assert index.ancestor_in(h, _body(engine, "v", "then_branch")) is None


def test_captures(engine: Engine) -> None:
    index = engine.index
    found = {t.name for t in index.captures(_node(engine, "v"))}
    assert found == {"u", "m", "x", "k"}
    assert {t.name for t in index.captures(_node(engine, "b"))} == {"u", "k"}
    assert index.captures(_node(engine, "y")) == []


def test_bodies_come_before_their_owner(engine: Engine) -> None:
    walked = [node.op for node in engine.index.walk()]
    assert walked == ["Exp", "Mul", "Add", "Identity", "Add", "Mul", "Loop", "If", "Sin"]
    assert [g.name for g in engine.index.graphs(engine.index.root)] == ["g", "t", "e", "body"]
    for name, owner in (("p", "v"), ("h", "b"), ("b", "v"), ("u", "v"), ("v", "y"), ("p", "a")):
        before, after = (engine.index.position(_node(engine, n)) for n in (name, owner))
        assert before < after


def test_a_node_is_removed_and_restored_with_its_bodies(engine: Engine) -> None:
    index = engine.index
    y, v = _node(engine, "y"), _node(engine, "v")
    captured = [(t, index.uses(t)) for t in index.captures(v)]
    removed = [index.remove_node(y), index.remove_node(v)]
    assert v not in index
    assert _node_is_gone(index, "Loop")
    assert index.use_count(_value(engine, "m")) == 0
    assert index.home(_value(engine, "x")) is index.root
    index.restore(removed[1])
    index.restore(removed[0])
    assert_consistent(index)
    for tensor, uses in captured:
        assert set(index.uses(tensor)) == set(uses)


def _node_is_gone(index: Index, op: str) -> bool:
    return all(node.op != op for node in index.walk())


def test_tidy_drops_removed_nodes_and_sorts_the_others(engine: Engine) -> None:
    index = engine.index
    u, y = _node(engine, "u"), _node(engine, "y")
    index.remove_node(y)
    u.order = 99 * SPACING
    index.tidy(index.root)
    assert [node.op for node in index.root.nodes] == ["If", "Exp"]


def test_renumber_spreads_positions(engine: Engine) -> None:
    index = engine.index
    v = _node(engine, "v")
    for place, node in enumerate(index.root.nodes):
        node.order = SPACING + place
    index.renumber(index.root)
    assert [node.order for node in index.root.nodes] == [0, SPACING, 2 * SPACING]
    assert index.lower_bound(v) == 0


def test_omitted_operands_are_not_readers() -> None:
    text = """g (float[5,1,3] x, float[1,8,3] w, float[1,8,2] r, float[1,1,2] h) => (float[1,1,2] last) {
        , last = LSTM<hidden_size = 2>(x, w, r, , , h) }"""
    engine = Engine(import_model(parse(text, 17, 8)), ())
    (node,) = engine.index.walk()
    absent = node.inputs[3]
    assert engine.index.use_count(absent) == 0
    assert engine.index.home(absent) is None
    assert not engine.index.is_unused(node)
    assert_consistent(engine.index)


def test_body_graphs_in_attribute_order(engine: Engine) -> None:
    assert [g.name for g in bodies(_node(engine, "v"))] == ["t", "e"]
    assert bodies(_node(engine, "y")) == []


def test_the_cost_of_an_edit_does_not_depend_on_the_readers() -> None:
    """Editing a value with thousands of readers takes constant time per reader."""
    count = 20_000
    nodes = [onnx.helper.make_node("Neg", ["x"], [f"v{i}"]) for i in range(count)]
    infos = [onnx.helper.make_tensor_value_info(n, 1, [1]) for n in ("x", f"v{count - 1}")]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:])
    proto = onnx.helper.make_model(
        graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)]
    )
    index = Index(import_model(proto).graph)
    x = index.root.inputs[0]
    assert index.use_count(x) == count
    for use in index.uses(x)[:-1]:
        assert isinstance(use.reader, Node)
        index.remove_node(use.reader)
    assert index.use_count(x) == 1


def test_original_and_is_outside() -> None:
    text = """g (float[3] x, int64 m) => (float[3] y) {
        u = Identity(x)
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so)
            <float[3] k = {1, 2, 3}> {
            co = Identity(ci) v = Identity(s) w = Identity(v) p = Add(w, u) so = Mul(p, k) }> }"""
    engine = Engine(import_model(parse(text, 21, 10)), ())
    index, body = engine.index, _body(engine, "y", "body")
    assert index.original(_value(engine, "w")) is _value(engine, "s")
    assert index.original(_value(engine, "u")) is _value(engine, "x")
    assert index.original(_value(engine, "p")) is _value(engine, "p")
    outside = [name for name in "xuswpki" if index.is_outside(_value(engine, name), body)]
    assert outside == ["x", "u"]
