"""Edits of loops by role: the model computes the same after each, and each can be undone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.edits import PatchError
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.loop_edit import LoopEdit
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.patch_check import check_reads, check_types
from looplift.rewrite.facts.counted_loop import counted_loop
from looplift.rewrite.graph.ir import Graph, Node, Tensor, Variable
from looplift.rewrite.graph.views import CarriedValue, LoopView, ScanInput, ScanView
from looplift.rewrite.storage.model import export_model, import_model

from ...equivalence import assert_equivalent, ops
from ...small_models import parse
from ..fact_oracle import Feeds, value
from ..graph_checks import assert_consistent

FEEDS = Feeds(sizes=(1, 2, 7), values={"n": [0, 1, 2], "m": [0, 1, 3]})


class Edited:
    """A model with a patch rooted at its only loop."""

    def __init__(self, text: str) -> None:
        self.proto = parse(text, 21, 10)
        self.model = import_model(self.proto)
        self.engine = Engine(self.model, ())
        self.loop: Node = next(n for n in self.engine.index.walk() if n.op in ("Loop", "Scan"))
        self.patch = Patch(self.engine.facts, self.loop)
        self.edit: LoopEdit = self.patch.loop(self.loop)

    def __getitem__(self, name: str) -> Tensor:
        return value(self.engine.facts, name)

    @property
    def body(self) -> Graph:
        found: Graph = self.loop.attrs["body"]
        return found

    def node(self, name: str) -> Node:
        """The node that computes a value."""
        found = self.engine.index.producer(self[name])
        assert found is not None
        return found

    def export(self) -> onnx.ModelProto:
        """The model after the patch, which is checked and kept."""
        check_reads(self.patch)
        check_types(self.patch)
        self.patch.keep()
        assert_consistent(self.engine.index)
        self.engine.run()
        return export_model(self.model)


# --- edits after which the model computes the same ---

TWO_VALUES = """{
        p = Mul(s, x) so = Sin(p) to = Neg(t) }"""
LOOP_OF_TWO = f"""g (float[3] x, float[3] s0, float[3] t0, int64 n) => (float[3] y) {{
    y, z = Loop (n, , s0, t0) <body = b (int64 i, bool ci, float[3] s, float[3] t)
        => (bool co, float[3] so, float[3] to) {TWO_VALUES[:-1]} co = Identity(ci) }}> }}"""
SCAN_OF_TWO = f"""g (float[T,3] xs, float[3] s0, float[3] t0) => (float[3] y) {{
    y, z = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] t, float[3] x)
        => (float[3] so, float[3] to) {TWO_VALUES}> (s0, t0, xs) }}"""


def _drop_carried(m: Edited) -> None:
    m.patch.replace(m["t"], m["t0"])
    m.edit.drop_carried([1])


def _replace_carried(m: Edited) -> None:
    """s becomes -v for a new carried value v = -s, whose final value is read."""
    (carried, _) = m.edit.carried
    assert carried.final is not None
    emit = m.patch.builder(carried.initial)
    first, final = Variable("v"), Variable("w")
    (inner,) = m.patch.node_first(m.body, "Neg", [first], [carried.input])
    m.patch.replace(carried.input, inner)
    last = m.patch.builder(carried.output, m.body)("Neg", carried.output)
    initial = emit("Neg", carried.initial)
    result = m.patch.node("Neg", [final], [carried.final], before=m.patch.index.root)[0]
    m.patch.replace(carried.final, result)
    m.edit.replace_carried(0, [CarriedValue(initial, first, last, final)])


def _replace_unread(m: Edited) -> None:
    """A new carried value whose final value nothing reads gets one."""
    carried = m.edit.carried[1]
    new = CarriedValue(carried.initial, Variable("v"), carried.output, None)
    m.patch.replace(carried.input, new.input)
    m.edit.replace_carried(1, [new])
    assert all(output.name for output in m.loop.outputs)


def _add_carried(m: Edited) -> None:
    """Readers of s read a new carried value that is updated in the same way."""
    carried = m.edit.carried[0]
    new = CarriedValue(carried.initial, Variable("v"), carried.output, None)
    m.patch.replace(carried.input, new.input)
    m.edit.add_carried([new])
    assert m.edit.carried[-1].input is new.input
    assert all(output.name for output in m.loop.outputs)


WHILE = """g (float[3] s0, int64 n) => (float[3] y) <int64 four = {4}, bool true = {1}> {
    y = Loop (n, true, s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Less(i, four) so = Sin(s) }> }"""
ENDLESS = WHILE.replace("Loop (n,", "Loop (,")
TRUE = WHILE.replace("co = Less(i, four)", "co = Identity(ci)")
ONE_ELEMENT = (
    TRUE.replace("bool ci", "bool[1] ci")
    .replace("bool co", "bool[1] co")
    .replace("bool true", "bool[1] true")
)


def _count(m: Edited) -> None:
    m.edit.count(m.patch.constant(np.array(5), like=m["s0"]))


MAP_LOOP = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[K,3] ys) {
    y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, float[3] r) {
        co = Identity(ci) x = Gather(xs, i) p = Exp(x) q = Mul(s, p) so = Sin(q) r = Neg(p) }> }"""
MAP_SCAN = """g (float[T,3] xs, float[3,T] zs, float[3] s0) => (float[3] y, float[3,T] ys) {
    y, ys = Scan <num_scan_inputs=2, scan_input_axes=[0,1], scan_input_directions=[0,1],
        scan_output_axes=[1], scan_output_directions=[1],
        body = b (float[3] s, float[3] x, float[3] z) => (float[3] so, float[3] r) {
        p = Exp(x) q = Mul(s, p) so = Add(q, z) r = Neg(p) }> (s0, xs, zs) }"""


def _read_slices(m: Edited) -> None:
    inner, node = m["p"], m.node("p")
    stacked = m.patch.builder(inner)("Exp", m["xs"])
    m.edit.read_slices([(inner, stacked)])
    m.patch.remove(node)


def _read_instead(m: Edited) -> None:
    """The first scan input is no longer read, and only its entries leave the attributes."""
    _read_slices(m)
    m.edit.drop_unread_scan_inputs()
    first, second = ScanView(m.loop).scan_inputs
    assert (first.sequence.name, first.axis, first.reverse) == ("zs", 1, True)
    assert (second.axis, second.reverse) == (0, False)


def _collect(m: Edited) -> None:
    """Collects p, and computes the scan output from it."""
    (old,) = [t for t in m.loop.outputs[1:2] if t.name]
    (stacked,) = m.edit.add_scan_outputs([m["p"]])
    emit = m.patch.builder_after(old)
    if m.loop.op == "Scan":  # the old scan output runs along axis 1, the last slice first
        stacked = emit.move_axis(emit.reverse(stacked, 0), 0, 1, 2)
    m.patch.replace(old, emit("Neg", stacked))
    m.edit.drop_scan_outputs([0])


def _to_scan(m: Edited) -> None:
    loop = counted_loop(m.engine.facts, m.loop)
    assert loop is not None
    assert loop.trip is not None
    assert loop.iteration is not None
    emit = m.patch.builder(loop.iteration)
    numbers = emit("Range", emit.scalar(0), loop.trip, emit.scalar(1))
    inputs = [ScanInput(r.sequence, r.slice, r.axis, False) for r in loop.reads]
    m.edit.to_scan(loop, [*inputs, ScanInput(numbers, loop.iteration, 0, False)])
    assert m.loop.op == "Scan"
    assert len(m.edit.carried) == 1


def _to_reversed_scan(m: Edited) -> None:
    """Reads the reversed sequence from its end."""
    loop = counted_loop(m.engine.facts, m.loop)
    assert loop is not None
    assert loop.iteration is not None
    (read,) = loop.reads
    emit = m.patch.builder(read.slice)
    backwards = emit.reverse(read.sequence, 1)
    numbers = emit("Range", emit.scalar(0), emit.scalar(4), emit.scalar(1))
    inputs = [
        ScanInput(backwards, read.slice, 1, True),
        ScanInput(numbers, loop.iteration, 0, False),
    ]
    m.edit.to_scan(loop, inputs)


COUNTED = """g (float[3,4] xs, float[3] s0) => (float[3] y, float[4,3] ys) <int64 four = {4}> {
    y, ys = Loop (four, , s0) <body = b (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, float[3] x) {
        x = Gather<axis=1>(xs, i) f = Cast<to=1>(i) c = Cast<to=1>(ci) q = Mul(s, x) u = Add(q, f)
        so = Sub(u, c) co = Identity(ci) }> }"""
COUNTED_WITH_VECTOR = COUNTED.replace("bool ci", "bool[1] ci").replace("bool co", "co")

EDITS: dict[str, tuple[str, Callable[[Edited], None]]] = {
    "drop_carried of a Loop": (LOOP_OF_TWO, _drop_carried),
    "drop_carried of a Scan": (SCAN_OF_TWO, _drop_carried),
    "replace_carried of a Loop": (LOOP_OF_TWO, _replace_carried),
    "replace_carried of a Scan": (SCAN_OF_TWO, _replace_carried),
    "replace_carried without a final value": (LOOP_OF_TWO, _replace_unread),
    "add_carried to a Loop": (LOOP_OF_TWO, _add_carried),
    "add_carried to a Scan": (SCAN_OF_TWO, _add_carried),
    "drop_trip_count": (WHILE.replace("(n,", "(many,").replace("<int64", "<int64 many = {99}, int64"),
                        lambda m: m.edit.drop_trip_count()),
    "drop_condition": (WHILE, lambda m: m.edit.drop_condition()),
    "set_next_condition": (TRUE, lambda m: m.edit.set_next_condition(True)),
    "set_next_condition of one element": (ONE_ELEMENT, lambda m: m.edit.set_next_condition(True)),
    "count": (ENDLESS, _count),
    "read_slices of a Loop": (MAP_LOOP, _read_slices),
    "read_slices of a Scan": (MAP_SCAN, _read_slices),
    "read_slices of nothing": (MAP_SCAN, lambda m: m.edit.read_slices([])),
    "drop_unread_scan_inputs": (MAP_SCAN, _read_instead),
    "drop_unread_scan_inputs of a Loop": (MAP_LOOP, lambda m: m.edit.drop_unread_scan_inputs()),
    "add and drop_scan_outputs of a Loop": (MAP_LOOP, _collect),
    "add and drop_scan_outputs of a Scan": (MAP_SCAN, _collect),
    "to_scan": (COUNTED, _to_scan),
    "to_scan with a condition of one element": (COUNTED_WITH_VECTOR, _to_scan),
    "to_scan in reverse": (COUNTED, _to_reversed_scan),
}  # fmt: skip


@pytest.mark.parametrize(("text", "edit"), EDITS.values(), ids=EDITS)
def test_the_model_computes_the_same(text: str, edit: Callable[[Edited], None]) -> None:
    edited = Edited(text)
    edit(edited)
    assert_equivalent(edited.proto, edited.export(), FEEDS, 1e-5)


@pytest.mark.parametrize(("text", "edit"), EDITS.values(), ids=EDITS)
def test_an_edit_can_be_undone(text: str, edit: Callable[[Edited], None]) -> None:
    edited = Edited(text)
    before = export_model(edited.model).SerializeToString()
    edit(edited)
    edited.patch.roll_back()
    assert_consistent(edited.engine.index)
    assert export_model(edited.model).SerializeToString() == before


# --- what single edits leave ---


@pytest.mark.parametrize("text", [LOOP_OF_TWO, SCAN_OF_TWO])
def test_a_dropped_value_must_be_unread(text: str) -> None:
    edited = Edited(text)
    with pytest.raises(PatchError, match="dropped but still read"):
        edited.edit.drop_carried([0])


@pytest.mark.parametrize("text", [MAP_LOOP, MAP_SCAN])
def test_a_dropped_scan_output_must_be_unread(text: str) -> None:
    edited = Edited(text)
    with pytest.raises(PatchError, match="dropped but still read"):
        edited.edit.drop_scan_outputs([0])


def test_a_new_scan_output_comes_after_omitted_final_values() -> None:
    """A Loop without scan outputs may omit the final values of its last carried values."""
    edited = Edited(LOOP_OF_TWO.replace("y, z = ", "y = "))
    inner = edited["p"]
    (stacked,) = edited.edit.add_scan_outputs([inner])
    assert [output.name for output in edited.loop.outputs] == ["y", "to", "p"]
    assert edited.loop.outputs[2] is stacked
    assert edited.body.outputs[3] is inner


def test_omitted_final_values_stay_omitted() -> None:
    edited = Edited(LOOP_OF_TWO.replace("y, z = ", "y = "))
    edited.patch.replace(edited["t"], edited["t0"])
    edited.edit.drop_carried([1])
    assert [output.name for output in edited.loop.outputs] == ["y"]


def test_attributes_of_scan_outputs() -> None:
    """Axes and directions stay with their outputs."""
    edited = Edited(MAP_SCAN)
    edited.edit.add_scan_outputs([edited["p"]])
    outputs = ScanView(edited.loop).scan_outputs
    assert [(o.slice.name, o.axis, o.reverse) for o in outputs] == [("r", 1, True), ("p", 0, False)]
    edited.patch.replace(edited.loop.outputs[1], edited["xs"])
    edited.edit.drop_scan_outputs([0])
    assert "scan_output_axes" not in edited.loop.attrs
    assert "scan_output_directions" not in edited.loop.attrs


def test_one_scan_input_stays() -> None:
    """The trip count of a Scan is the length of its scan inputs."""
    edited = Edited(MAP_SCAN)
    for name in ("x", "z"):
        edited.patch.replace(edited[name], edited["s0"])
    edited.edit.drop_unread_scan_inputs()
    (kept,) = ScanView(edited.loop).scan_inputs
    assert kept.sequence is edited["xs"]


def test_the_next_condition() -> None:
    edited = Edited(WHILE)
    edited.edit.set_next_condition(False)
    exported = edited.export()
    assert ops(exported)["Loop"] == 1
    assert_equivalent(
        parse(WHILE.replace("Less(i, four)", "Less(four, i)"), 21, 10), exported, FEEDS
    )


def test_a_counted_loop_has_no_conditions() -> None:
    edited = Edited(ENDLESS)
    _count(edited)
    view = LoopView(edited.loop)
    assert view.trip is not None
    assert view.condition is None
    assert view.never_stops_early(edited.engine.facts)


def test_declared_scan_outputs() -> None:
    """Known sizes are declared, others stay open; the outputs of a Scan need no declaration."""
    edited = Edited(MAP_LOOP.replace("float[3] r", "r"))
    loop = counted_loop(edited.engine.facts, edited.loop)
    assert loop is not None
    edited.edit.declare_scan_outputs(loop)
    declared = edited.body.output_info[edited["r"]]
    assert [d.dim_value for d in declared.type.tensor_type.shape.dim] == [3]


def test_remove_if_unused() -> None:
    edited = Edited(LOOP_OF_TWO)
    edited.edit.remove_if_unused()
    assert edited.loop in edited.engine.index
    edited.patch.replace(edited["y"], edited["s0"])
    edited.edit.remove_if_unused()
    assert edited.loop not in edited.engine.index
