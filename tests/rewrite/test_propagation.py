"""Facts that are kept through a rewrite are those that would be found anew."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.facts.facts import Facts
from looplift.rewrite.graph.ir import Node, Tensor
from looplift.rewrite.storage.model import import_model
from looplift.rules import PHASES

from ..fuzz.loops import make_model
from ..small_models import parse
from .test_settled_states import LATE

CHUNK = 10


class Checked(Engine):
    """Compares all facts after each commit."""

    compared = 0

    def _affected_nodes(self, patch: Patch) -> list[Node]:
        near = super()._affected_nodes(patch)
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


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_after_each_commit_the_facts_are_those_of_the_graph(first: int) -> None:
    compared = 0
    for seed in range(first, first + CHUNK):
        engine = Checked(import_model(make_model(seed)), PHASES)
        engine.run()
        compared += engine.compared
    assert compared > 100 * CHUNK


def test_what_is_found_of_a_loop_late_is_found_where_rules_look() -> None:
    engine = Engine(import_model(parse(LATE)), PHASES)
    engine.run()
    loop = next(node for node in engine.index.walk() if node.op in ("Loop", "Scan"))
    anew = engine.facts.assuming({}, _values(engine))
    assert engine.facts.shape(loop.outputs[0]) == anew.shape(loop.outputs[0]) is not None


def test_a_patch_that_is_undone_leaves_no_facts_behind() -> None:
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
