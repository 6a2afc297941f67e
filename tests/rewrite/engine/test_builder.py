"""New operators: their place, their form in each opset, and what they compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.builder import Builder
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match, Rule
from looplift.rewrite.facts.counted_loop import counted_loop
from looplift.rewrite.graph.ir import Node, Tensor
from looplift.rewrite.running.runtime import Array
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rules.loops.loop_to_scan import LoopToPaddedScan
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import assert_equivalent, ops, run_rules
from ...small_models import parse, run
from ..fact_oracle import Feeds, value


@pytest.mark.parametrize(("opset", "operands"), [(12, 1), (13, 2)])
@pytest.mark.parametrize("way", ["unsqueezed", "squeezed", "reduced"])
def test_axes_are_operands_since_opset_13(opset: int, operands: int, way: str) -> None:
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


class SplitsTile(Rule[Node]):
    """Replaces a Tile by the elementwise maxima and minima of two pieces of its operand."""

    root = "Tile"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        result = found.outputs[0]
        emit = patch.builder(result)
        small, large = emit.split(found.inputs[0], 0, [1, 3], [result] * 2)
        high, low = emit.max(large, small), emit.min(large, small)
        patch.replace(result, emit("Concat", high, low, axis=0))
        patch.remove(found)
        patch.toward_normal_form()


@pytest.mark.parametrize(("opset", "op"), [(9, "Where"), (11, "Where"), (12, "Max"), (13, "Max")])
def test_split_and_extrema_of_integers(opset: int, op: str) -> None:
    numbers = np.array([3, -7, 3, 2**62])
    before = parse("g (int64[4] k, int64[1] s) => (int64[6] y) { y = Tile(k, s) }", opset)
    result, trace, _ = run_rules(before, [SplitsTile])
    assert trace.defects() == []
    assert op in ops(result)
    onnx.checker.check_model(result, full_check=True)
    (found,) = run(result, k=numbers, s=np.array([4]))
    high, low = np.maximum(numbers[1:], 3), np.minimum(numbers[1:], 3)
    np.testing.assert_array_equal(found, np.concatenate([high, low]))


def test_old_slices_have_no_steps() -> None:
    """Bounds are attributes until opset 9, and every step is 1."""
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


def test_a_new_result_comes_before_a_branch_that_returns_it() -> None:
    """A body that returns an outer value reads the value."""
    model = parse(RESULTS_IN_A_BRANCH)
    result, trace, _ = run_rules(model, [EliminateIdentity, LoopToPaddedScan])
    assert trace.defects() == []
    assert "LoopToPaddedScan" in [commit.rule for commit in trace.commits()]
    assert_equivalent(model, result, Feeds(sizes=(3, 5), values={"n": [0, 1, 3]}), 1e-5)


def test_after_a_result_means_before_its_first_reader() -> None:
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


# --- what the operators compute ---

BUILT: dict[str, tuple[Callable[[Builder, Tensor], Tensor], Callable[[Array], Array]]] = {
    "unsqueeze": (lambda e, x: e.unsqueeze(x, [0, 2]), lambda x: x[None, :, None]),
    "squeeze": (lambda e, x: e.squeeze(e.unsqueeze(x, [1]), [1]), lambda x: x),
    "transpose": (lambda e, x: e.transpose(x, [1, 0]), lambda x: x.T),
    "transpose by the identity": (lambda e, x: e.transpose(x, [0, 1]), lambda x: x),
    "move_axis": (lambda e, x: e.move_axis(e.unsqueeze(x, [0]), 2, 0, 3), lambda x: x.T[:, None]),
    "merge_axes": (lambda e, x: e.merge_axes(e.unsqueeze(x, [2]), 1, 3), lambda x: x),
    "merge_axes from the first": (lambda e, x: e.merge_axes(x, 0, 2), lambda x: x.ravel()),
    "reshape": (lambda e, x: e.reshape(x, e.vector(-1)), lambda x: x.ravel()),
    "shape": (lambda e, x: e.shape(x, 1, 2), lambda x: np.array(x.shape[1:2])),
    "slice": (lambda e, x: e.slice(x, 1, slice(1, -1, 1)), lambda x: x[:, 1:-1]),
    "slice to the end": (lambda e, x: e.slice(x, 0, slice(1, None, 1)), lambda x: x[1:]),
    "slice with a step": (lambda e, x: e.slice(x, 1, slice(0, None, 2)), lambda x: x[:, ::2]),
    "reverse": (lambda e, x: e.reverse(x, 1), lambda x: x[:, ::-1]),
    "concat": (lambda e, x: e.concat([e.vector(1), e.vector(2, 3)]), lambda x: np.array([1, 2, 3])),
    "concat of one": (lambda e, x: e.concat([x]), lambda x: x),
    "repeat": (lambda e, x: e.repeat(x, e.vector(2)), lambda x: np.stack([x, x])),
    "repeat not once": (lambda e, x: e.repeat(x, e.vector(0)), lambda x: np.zeros((0, *x.shape))),
    "combine": (lambda e, x: e.combine("Sub", [x, x, x]), lambda x: -x),
    "combine one": (lambda e, x: e.combine("Sub", [x]), lambda x: x),
    "reduce": (lambda e, x: e.reduce("ReduceMax", x, [1], 1), lambda x: x.max(1, keepdims=True)),
}


@pytest.mark.parametrize("opset", [14, 21])
@pytest.mark.parametrize(("build", "wanted"), BUILT.values(), ids=BUILT)
def test_built_operators(
    build: Callable[[Builder, Tensor], Tensor], wanted: Callable[[Array], Array], opset: int
) -> None:
    model = import_model(parse("g (float[3,4] x) => (y) { y = Neg(x) }", opset))
    engine = Engine(model, ())
    y, x = value(engine.facts, "y"), value(engine.facts, "x")
    node = engine.index.producer(y)
    assert node is not None
    patch = Patch(engine.facts, node)
    y.info = None
    patch.replace(y, build(patch.builder(y), x))
    patch.remove(node)
    engine.run()
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = run(export_model(model), x=array)
    np.testing.assert_array_equal(found, wanted(array))


def test_old_reshapes_cannot_be_empty() -> None:
    engine = Engine(import_model(parse("g (float[4] x) => (float[4] y) { y = Exp(x) }", 13)), ())
    y = value(engine.facts, "y")
    node = engine.index.producer(y)
    assert node is not None
    emit = Patch(engine.facts, node).builder(y)
    with pytest.raises(Miss, match="before opset 14"):
        emit.reshape(y, emit.vector(-1))


LOOPS = {
    "Loop": """g (float[3,T] x, int64 n) => (y) <bool true = {1}> {
        y = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {
            a = Gather<axis=1>(x, i) r = Neg(a) co = Identity(ci) }> }""",
    "Loop over a whole axis": """g (float[3,T] x, int64 n) => (y) <int64 one = {1}, bool true = {1}> {
        sizes = Shape(x) t = Gather(sizes, one)
        y = Loop (t, true) <body = b (int64 i, bool ci) => (bool co, r) {
            a = Gather<axis=1>(x, i) r = Neg(a) co = Identity(ci) }> }""",
    "Loop of three iterations": """g (float[3,T] x, int64 n) => (y) <int64 three = {3}, bool true = {1}> {
        y = Loop (three, true) <body = b (int64 i, bool ci) => (bool co, r) {
            a = Gather<axis=1>(x, i) r = Neg(a) co = Identity(ci) }> }""",
    "Loop of a negative trip count": """g (float[3,T] x, int64 n) => (y) <int64 minus = {-2}, bool true = {1}> {
        y = Loop (minus, true) <body = b (int64 i, bool ci) => (bool co, r) {
            a = Gather<axis=1>(x, i) r = Neg(a) co = Identity(ci) }> }""",
    "Scan": """g (float[3,T] x, int64 n) => (y) {
        y = Scan <num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
            body = b (float[3] a) => (float[3] r) { r = Neg(a) }> (x) }""",
    "reversed Scan": """g (float[3,T] x, int64 n) => (y) {
        y = Scan <num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
            scan_output_axes=[1], scan_output_directions=[1],
            body = b (float[3] a) => (float[3] r) { r = Neg(a) }> (x) }""",
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_what_a_counted_loop_reads_and_writes(name: str, count: int) -> None:
    """The scan output equals what the builder computes from all slices outside."""
    proto = parse(LOOPS[name], 17)
    model = import_model(proto)
    engine = Engine(model, ())
    y = value(engine.facts, "y")
    node = engine.index.producer(y)
    assert node is not None
    loop = counted_loop(engine.facts, node)
    assert loop is not None
    patch = Patch(engine.facts, node)
    emit = patch.builder(y)
    (read,), (output,) = loop.reads, loop.scan_outputs
    negated = emit("Neg", emit.all_slices(engine.facts, loop, read))
    numbers, trip_count = emit.iteration_numbers(loop), emit.trip_count(loop)
    zero = emit("Sub", emit("Size", numbers), emit.squeeze(trip_count, [0]))
    shifted = emit("Add", negated, emit("Cast", zero, to=onnx.TensorProto.FLOAT))
    patch.replace(y, emit.scan_output(shifted, output, 1))
    patch.remove(node)
    engine.run()
    length = count if name == "Loop over a whole axis" or "Scan" in name else 5
    if "Scan" in name and count == 0:
        length = 1  # onnxruntime refuses a Scan over an empty axis
    x = np.arange(3 * length, dtype=np.float32).reshape(3, length)
    (expected,) = run(proto, x=x, n=np.array(count))
    (found,) = run(export_model(model), x=x, n=np.array(count))
    np.testing.assert_array_equal(
        found, expected if expected.size else expected.reshape(found.shape)
    )
