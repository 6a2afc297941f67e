"""Incrementally updated facts equal facts derived from scratch."""

from __future__ import annotations

import pytest

from looplift import rewrite
from looplift.rewrite import symbolic
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.facts.facts import Facts
from looplift.rewrite.facts.propagation import refresh, reinfer_carried
from looplift.rewrite.graph.ir import Node, Tensor
from looplift.rewrite.storage.model import import_model
from looplift.rules import PHASES

from ...equivalence import rewritten
from ...fuzz.loops import make_model
from ...small_models import parse
from ..fact_oracle import Feeds, value

CHUNK = 10
N, M = symbolic.symbol("N"), symbolic.symbol("M")

LATE = """g (float[T,W] x, int64 n) => (float[P] y)
    <int64 minus = {-1}, int64 behind = {-2}, int64[1] far = {9223372036854775807},
     int64[1] at0 = {0}, int64[1] at1 = {1}, int64 one = {1}> {
    all = Shape(x) w = Gather(all, minus) t = Gather(all, at0) start = ConstantOfShape(t)
    k = Sub(minus, w) trips = Div(k, behind)
    y = Loop (trips, , start) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[Q] so) {
        from = Unsqueeze(minus, at0) cut = Slice(x, from, far, at1) column = Squeeze(cut, at1)
        so = Mul(s, column) j = Add(i, one) co = Less(j, n) }> }"""
"""Rules turn the Slice into a Gather, from which the shape of the carried value follows anew."""


class Checked(Engine):
    """Compares all facts after each commit.

    The engine infers the carried values of changed loops again at the end of a phase, or where a
    rule would lack them; here, after each commit.
    """

    compared = 0

    def _affected_nodes(self, patch: Patch) -> list[Node]:
        near = super()._affected_nodes(patch)
        for loop in self._changed_loops:
            if loop in self.index:
                near += reinfer_carried(self.facts, loop)
        kept = self.facts.cached_facts(_values(self))
        anew: Facts = self.facts.assuming({}, _values(self))
        for tensor, fact in kept.items():
            assert fact == anew.of(tensor), f"after {patch.log}: `{tensor.name}`"
        self.compared += len(kept)
        return near


def _values(engine: Engine) -> list[Tensor]:
    graphs = list(engine.index.graphs(engine.index.root))
    made = [t for graph in graphs for node in engine.index.nodes(graph) for t in node.outputs]
    return [*made, *(t for graph in graphs for t in graph.inputs)]


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(10, 120, CHUNK))],
)
def test_facts_after_each_commit_equal_facts_from_scratch(first: int) -> None:
    compared = 0
    for seed in range(first, first + CHUNK):
        engine = Checked(import_model(make_model(seed)), PHASES)
        engine.run()
        compared += engine.compared
    assert compared > 100 * CHUNK


def test_carried_values_are_inferred_again_when_the_body_changes() -> None:
    engine = Engine(import_model(parse(LATE)), PHASES)
    engine.run()
    loop = next(node for node in engine.index.walk() if node.op in ("Loop", "Scan"))
    anew = engine.facts.assuming({}, _values(engine))
    assert engine.facts.shape(loop.outputs[0]) == anew.shape(loop.outputs[0]) is not None


def test_an_undone_patch_leaves_no_facts() -> None:
    engine = Engine(import_model(parse("g (float[2] x) => (float[2] y) { y = Abs(x) }")), PHASES)
    root = next(engine.index.walk())
    y = root.outputs[0]
    before = engine.facts.of(y)
    engine.facts.begin_patch()
    patch = Patch(engine.facts, root)
    (made,) = patch.node("Shape", [root.inputs[0]], [y])
    assert engine.facts.of(made).values == (2,)
    patch.roll_back()
    engine.facts.discard_patch()
    assert engine.facts.cached_facts([made, y]) == {y: before}


def test_a_second_rewrite_changes_nothing() -> None:
    """The shape of the carried value is known only after a rule turns the Slice into a Gather."""
    model = parse(LATE)
    result = rewritten(model, Feeds(values={"n": [0, 1, 2]}))
    assert not rewrite(result.model).report.commits


class _Edited:
    """A model in which the input of one node is exchanged."""

    TEXT = """g (float[N,3] x, float[M,4] z) => (int64[2] y, int64[2] w) {
        a = Exp(x) b = Neg(a) y = Shape(b) c = Abs(z) w = Shape(c) }"""

    def __init__(self) -> None:
        self.engine = Engine(import_model(parse(self.TEXT, 21, 10)), ())
        self.facts = self.engine.facts
        for node in self.facts.index.walk():
            for tensor in node.outputs:
                self.facts.of(tensor)

    def node(self, name: str) -> Node:
        node = self.facts.index.producer(value(self.facts, name))
        assert node is not None
        return node

    def exchange(self, name: str, slot: int, new: str) -> list[Node]:
        node = self.node(name)
        patch = Patch(self.facts, node)
        patch.replace_input(node, slot, value(self.facts, new))
        return refresh(self.facts, patch.changed())


class TestRefresh:
    def test_follows_a_change_downstream(self) -> None:
        edited = _Edited()
        readers = edited.exchange("a", 0, "z")
        assert edited.facts.of(value(edited.facts, "y")).values == (M, 4)
        assert {node.outputs[0].name for node in readers} == {"b", "y"}

    def test_stops_where_nothing_changes(self) -> None:
        edited = _Edited()
        assert edited.exchange("b", 0, "x") == []
        assert edited.facts.of(value(edited.facts, "y")).values == (N, 3)

    def test_reaches_into_and_out_of_bodies(self) -> None:
        text = """g (float[N,3] x, float[2,3] z, int64 m) => (int64[2] y, float[?,?] l) { a = Exp(x)
            l = Loop (m, , a) <body = b (int64 i, bool ci, float[?,?] s) => (bool co, float[?,?] so) {
                co = Identity(ci) h = Shape(s) so = Neg(s) }>
            y = Shape(l) }"""
        engine = Engine(import_model(parse(text, 21, 10)), ())
        facts = engine.facts
        for name in ("h", "y"):
            assert facts.of(value(facts, name)).values == (N, 3)
        node = facts.index.producer(value(facts, "a"))
        assert node is not None
        patch = Patch(facts, node)
        patch.replace_input(node, 0, value(facts, "z"))
        refresh(facts, patch.changed())
        for name in ("h", "y"):
            assert facts.of(value(facts, name)).values == (2, 3)
