"""Where new operators stand, and how their axes are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match, Rule
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rules.loops.padded_scan import LoopToPaddedScan
from looplift.rules.values.dead_nodes import EliminateIdentity

from ..equivalence import assert_equivalent, ops, run_rules
from ..rewrite.fact_oracle import Feeds, value
from ..small_models import parse, run


@pytest.mark.parametrize(("opset", "operands"), [(12, 1), (13, 2)])
@pytest.mark.parametrize("way", ["unsqueezed", "squeezed", "reduced"])
def test_axes_are_given_as_the_opset_wants(opset: int, operands: int, way: str) -> None:
    shape = {"unsqueezed": "1,3,1,1", "squeezed": "3", "reduced": "3"}[way]
    proto = parse(f"g (float[3,1] x) => (float[{shape}] y) {{ z = Neg(x) y = Exp(z) }}", opset, 7)
    model = import_model(proto)
    engine = Engine(model, ())
    node = engine.index.producer(value(engine.facts, "y"))
    assert node is not None
    patch = Patch(engine.facts, node)
    emit, z = patch.builder(value(engine.facts, "z")), value(engine.facts, "z")
    made = {
        "unsqueezed": lambda: emit.unsqueeze(z, [0, 2]),
        "squeezed": lambda: emit.squeeze(z, [1]),
        "reduced": lambda: emit.reduce("ReduceSum", z, [1], 0),
    }[way]()
    patch.replace(value(engine.facts, "y"), made)
    patch.remove(node)
    maker = engine.index.producer(made)
    assert maker is not None
    assert len(maker.inputs) == operands
    engine.run()
    onnx.checker.check_model(export_model(model), full_check=True)


class _Respells(Rule):
    """The pieces of a value, the larger of them."""

    root = "Tile"

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        emit = patch.builder(node.outputs[0])
        small, large = emit.split(node.inputs[0], 0, [1, 3], [node.outputs[0]] * 2)
        high, low = emit.max(large, small), emit.min(large, small)
        patch.replace(node.outputs[0], emit("Concat", high, low, axis=0))
        patch.remove(node)
        patch.toward_normal_form()


@pytest.mark.parametrize(("opset", "op"), [(9, "Where"), (11, "Where"), (12, "Max"), (13, "Max")])
def test_pieces_and_extremes_of_integers(opset: int, op: str) -> None:
    numbers = np.array([3, -7, 3, 2**62])
    before = parse("g (int64[4] k, int64[1] s) => (int64[6] y) { y = Tile(k, s) }", opset)
    result, trace, _ = run_rules(before, [_Respells])
    assert trace.defects() == []
    assert op in ops(result)
    onnx.checker.check_model(result, full_check=True)
    (found,) = run(result, k=numbers, s=np.array([4]))
    high, low = np.maximum(numbers[1:], 3), np.minimum(numbers[1:], 3)
    np.testing.assert_array_equal(found, np.concatenate([high, low]))


def test_old_slices_have_no_steps() -> None:
    """Bounds are attributes until opset 9, and there is no other step than 1."""
    model = import_model(parse("g (float[4] x) => (float[2] y) { z = Neg(x) y = Exp(z) }", 9, 4))
    engine = Engine(model, ())
    y, z = value(engine.facts, "y"), value(engine.facts, "z")
    node = engine.index.producer(y)
    assert node is not None
    patch = Patch(engine.facts, node)
    emit = patch.builder(z)
    with pytest.raises(Miss, match="before opset 10"):
        emit.reverse(z, 0)
    patch.replace(y, emit.slice(z, 0, slice(1, 3, 1)))
    patch.remove(node)
    engine.run()
    onnx.checker.check_model(export_model(model), full_check=True)


RESULTS_IN_A_BRANCH = """g (float[T,3] x, float[3] s0, int64 n, bool c) => (float[K,3] z, float[3] w) {
    y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        a = Gather(x, i) p = Mul(a, s) so = Sin(p) r = Identity(so) co = Identity(ci) }>
    z = If (c) <then_branch = t () => (float[M,3] a) { a = Identity(ys) },
                else_branch = e () => (float[T,3] b) { b = Neg(x) }>
    w = Exp(y) }"""


def test_a_result_that_a_branch_returns_is_there_before_the_branch() -> None:
    """A body that returns a value of the graph around it reads the value, too."""
    model = parse(RESULTS_IN_A_BRANCH)
    result, trace, _ = run_rules(model, [EliminateIdentity, LoopToPaddedScan])
    assert trace.defects() == []
    assert "LoopToPaddedScan" in [commit.rule for commit in trace.commits()]
    assert_equivalent(model, result, Feeds(sizes=(3, 5), values={"n": [0, 1, 3]}), 1e-5)


def test_behind_a_result_is_before_its_first_reader() -> None:
    proto = parse(
        """g (float[3] x, bool c) => (float[3] v, float[3] w) {
        y = Exp(x)
        v = If (c) <then_branch = t () => (float[3] a) { p = Neg(y) a = Neg(p) },
                    else_branch = e () => (float[3] b) { b = Neg(x) }>
        w = Sin(y) }"""
    )
    model = import_model(proto)
    engine = Engine(model, ())
    y = value(engine.facts, "y")
    node = engine.index.producer(y)
    assert node is not None
    patch = Patch(engine.facts, node)
    place = patch.after([y])
    assert place is engine.index.producer(value(engine.facts, "v"))
    assert patch.after([value(engine.facts, "w")]) is engine.index.root
