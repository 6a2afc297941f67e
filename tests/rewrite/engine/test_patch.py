"""Edits of a graph, and their complete undo."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift import Match, Miss, Rule
from looplift.rewrite.engine.edits import PatchError
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.patch_check import check_reads
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.graph.index import OrderExhausted
from looplift.rewrite.graph.ir import Constant, Node, Variable
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rules import PHASES
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import assert_equivalent
from ..graph_checks import assert_consistent
from ..patch_setting import Setting

RULES = list(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))


def _firing(rule: type[Rule], engine: Engine) -> tuple[Node, Any] | None:
    one = rule()
    for node in engine.index.walk():
        if rule.is_tried_at(node):
            try:
                return node, one.match(Match(node, engine.facts, engine.options))
            except Miss:
                continue
    return None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name())
def test_every_rule_can_be_undone(rule: type[Rule]) -> None:
    """After a rollback the model is written as before, and the same patch can be made again."""
    proto = fixture(rule.fires)
    model = import_model(proto)
    engine = Engine(model, ())
    found = _firing(rule, engine)
    while found is None:  # it fires after copies are removed
        copy = _firing(EliminateIdentity, engine)
        assert copy is not None, "the rule does not fire on its own model"
        EliminateIdentity().apply(Patch(engine.facts, copy[0]), copy[1])
        found = _firing(rule, engine)
    before = export_model(model).SerializeToString()
    node, match = found
    for _ in range(2):
        patch = Patch(engine.facts, node)
        rule().apply(patch, match)
        check_reads(patch)
        assert_consistent(engine.index)
        patch.roll_back()
        assert_consistent(engine.index)
        assert export_model(model).SerializeToString() == before
    patch = Patch(engine.facts, node)
    rule().apply(patch, match)
    engine.run()
    assert_equivalent(proto, export_model(model), tolerance=1e-5)


class TestReplace:
    def test_all_readers_bodies_included(self) -> None:
        setting = Setting()
        setting.patch.replace(setting["u"], setting["x"])
        assert setting.index.use_count(setting["u"]) == 0
        assert setting.node("p").inputs[0] is setting["x"]
        assert setting.node("q").inputs[0] is setting["x"]
        assert setting.node("z").inputs[0] is setting["x"]
        assert_consistent(setting.index)
        check_reads(setting.patch)

    def test_an_output_keeps_its_name(self) -> None:
        setting = Setting()
        old = setting["y"]
        (new,) = setting.patch.node("Tanh", [setting["u"]], like=[setting["x"]])
        setting.patch.replace(old, new)
        assert [t.name for t in setting.model.graph.outputs] == ["y", "z"]
        assert setting.model.graph.outputs[0] is new
        setting.patch.roll_back()
        assert setting.model.graph.outputs[0] is old
        assert_consistent(setting.index)

    def test_an_input_as_output_gets_a_node(self) -> None:
        setting = Setting()
        setting.patch.replace(setting["y"], setting["x"])
        setting.patch.remove(setting.node("y"))
        exported = setting.export()
        assert [o.name for o in exported.graph.output] == ["y", "z"]
        onnx.checker.check_model(exported, full_check=True)

    def test_one_input_of_one_node(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("p"), 0, setting["x"])
        assert setting.node("p").inputs[0] is setting["x"]
        assert setting.node("q").inputs[0] is setting["u"]

    def test_inside_one_body(self) -> None:
        setting = Setting()
        setting.patch.replace_in_body(setting.body("then_branch"), setting["u"], setting["x"])
        assert setting.node("p").inputs[0] is setting["x"]
        assert setting.node("q").inputs[0] is setting["u"]
        assert setting.node("z").inputs[0] is setting["u"]


class TestMove:
    def test_inline(self) -> None:
        setting = Setting()
        (result,) = setting.patch.inline(setting.body("then_branch"))
        setting.patch.replace(setting["v"], result)
        setting.patch.remove(setting.root)
        check_reads(setting.patch)
        assert_consistent(setting.index)
        assert setting.patch.delta["control"] == -1
        assert setting.patch.delta["nodes"] == -3
        exported = setting.export()
        onnx.checker.check_model(exported, full_check=True)
        assert [n.op_type for n in exported.graph.node] == ["Exp", "Mul", "Neg", "Sin", "Cos"]

    def test_hoist_keeps_the_order_of_nodes(self) -> None:
        setting = Setting()
        inner = [setting.node("a"), setting.node("p")]
        setting.patch.hoist(inner, before=setting.root)
        assert setting.node("p").order < setting.node("a").order < setting.root.order
        assert setting.node("u").order < setting.node("p").order

    def test_branches_of_an_if(self) -> None:
        setting = Setting()
        then, other = setting.body("then_branch"), setting.body("else_branch")
        setting.patch.swap_branches(setting.root)
        assert setting.body("then_branch") is other
        setting.patch.roll_back()
        assert setting.body("then_branch") is then

    def test_prepend_body(self) -> None:
        setting = Setting()
        then, other = setting.body("then_branch"), setting.body("else_branch")
        (result,) = setting.patch.prepend_body(then, other)
        assert result is setting["a"]
        assert {n.op for n in setting.index.nodes(other)} == {"Mul", "Neg", "Add", "Abs"}
        assert setting.node("a").order < setting.node("q").order
        assert setting.index.home(setting["w"]) is other
        setting.patch.roll_back()
        assert setting.index.home(setting["w"]) is then
        assert_consistent(setting.index)


class TestNew:
    def test_nodes_are_just_before_the_root(self) -> None:
        setting = Setting()
        (first,) = setting.patch.node("Neg", [setting["u"]], like=[setting["x"]])
        (second,) = setting.patch.node("Abs", [first], like=[setting["x"]])
        one, two = setting.index.producer(first), setting.index.producer(second)
        assert one is not None
        assert two is not None
        assert setting.node("u").order < one.order < two.order < setting.root.order
        assert (one.name, first.name) == ("Neg", "Neg_output_0")
        assert (two.name, second.name) == ("Abs", "Abs_output_0")
        setting.patch.replace(setting["v"], second)
        exported = setting.export()
        onnx.checker.check_model(exported, full_check=True)

    def test_constants_are_named_after_the_node_that_reads_them(self) -> None:
        setting = Setting()
        emit = setting.patch.builder(setting["x"])
        axes = emit.vector(0)
        added = emit("Unsqueeze", setting["u"], axes)
        assert (added.name, axes.name) == ("Unsqueeze_output_0", "Unsqueeze.axes")
        again = emit("Unsqueeze", added, axes)
        assert (again.name, axes.name) == ("Unsqueeze_1_output_0", "Unsqueeze.axes")

    def test_names_belong_to_a_module_and_survive(self) -> None:
        setting = Setting()
        like = Variable("/l/cell/Mul_6_output_0")
        (made,) = setting.patch.node("Abs", [setting["u"]], like=[like])
        node = setting.index.producer(made)
        assert node is not None
        assert (node.name, made.name) == ("/l/cell/Abs", "/l/cell/Abs_output_0")
        (other,) = setting.patch.node("Abs", [made], like=[Variable("")])
        assert other.name == ""
        setting.patch.replace_node(setting.root, [made])
        assert made.name == "v"

    def test_a_node_that_replaces_one_of_its_operator_takes_its_name(self) -> None:
        setting = Setting()
        weights = setting.patch.constant(np.ones(3, np.float32), setting["x"])
        (first,) = setting.patch.node("Add", [setting["u"], weights], like=[setting["x"]])
        (last,) = setting.patch.node("Abs", [first], like=[setting["x"]])
        setting.patch.replace(setting["v"], last)
        setting.patch.keep()
        node = setting.index.producer(first)
        assert node is not None
        later = Patch(setting.engine.facts, node)
        bias = later.constant(np.zeros(3, np.float32), setting["x"])
        (second,) = later.node("Add", [setting["u"], bias], like=[setting["x"]])
        assert (second.name, bias.name) == ("Add_1_output_0", "Add_1.B")
        later.replace_node(node, [second])
        heir = setting.index.producer(second)
        assert heir is not None
        assert (heir.name, second.name, bias.name) == ("Add", "Add_output_0", "Add.B")
        assert weights.name == "Add_1.B"
        later.roll_back()
        assert (node.name, first.name, weights.name) == ("Add", "Add_output_0", "Add.B")
        (third,) = later.node("Add", [setting["u"], weights], like=[setting["x"]])
        assert third.name == "Add_1_output_0", "an undone patch takes no names"

    def test_a_weight_of_the_file_keeps_its_name(self) -> None:
        """Also where it is named after the node that reads it, and another node replaces that."""
        setting = Setting()
        weight = setting.patch.constant(np.ones(3, np.float32), setting["x"])
        (old,) = setting.patch.node("Add", [setting["u"], setting["x"]], like=[setting["x"]])
        setting.patch.replace(setting["v"], old)
        setting.patch.keep()
        node = setting.index.producer(old)
        assert node is not None
        weight.name = f"{node.name}.weight"
        later = Patch(setting.engine.facts, node)
        (new,) = later.node("Add", [setting["u"], weight], like=[setting["x"]])
        later.replace_node(node, [new])
        heir = setting.index.producer(new)
        assert heir is not None
        assert (heir.name, weight.name) == ("Add", "Add.weight")

    def test_nodes_at_the_start_of_a_body(self) -> None:
        setting = Setting()
        body = setting.body("else_branch")
        (made,) = setting.patch.node_first(body, "Neg", [setting["u"]], like=[setting["u"]])
        (later,) = setting.patch.node_first(body, "Abs", [made], like=[setting["u"]])
        setting.patch.replace_input(setting.node("q"), 0, later)
        check_reads(setting.patch)
        assert_consistent(setting.index)

    def test_an_initializer(self) -> None:
        setting = Setting()
        inside = setting.body("then_branch")
        constant = setting.patch.constant(np.zeros(3, np.float32), like=setting["w"], graph=inside)
        assert setting.index.home(constant) is inside
        assert (
            setting.index.home(setting.patch.constant(np.ones(3), like=constant))
            is setting.model.graph
        )
        setting.patch.roll_back()
        assert setting.index.home(constant) is None
        assert all(c is not constant for c in inside.initializers)


class TestOutputsOfAnIf:
    def test_dropped(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y) {
            v, w = If (c) <then_branch = t () => (float[3] a, float[3] p) { a = Neg(x) p = Exp(x) },
                           else_branch = e () => (float[3] b, float[3] q) { b = Abs(x) q = Log(x) }>
            y = Sin(w) }"""
        setting = Setting(text)
        setting.patch.drop_outputs(setting.root, [1])
        assert [t.name for t in setting.root.outputs] == ["w"]
        assert [t.name for t in setting.body("then_branch").outputs] == ["p"]
        assert setting.index.is_unused(setting.node("a"))
        setting.patch.roll_back()
        assert [t.name for t in setting.root.outputs] == ["v", "w"]
        assert_consistent(setting.index)

    def test_not_while_they_are_read(self) -> None:
        setting = Setting()
        with pytest.raises(PatchError, match="`v` of If of `v` is still read"):
            setting.patch.drop_outputs(setting.root, [])

    def test_added(self) -> None:
        setting = Setting()
        bodies = setting.body("then_branch"), setting.body("else_branch")
        results = {bodies[0]: [setting["p"]], bodies[1]: [setting["q"]]}
        (added,) = setting.patch.add_outputs(setting.root, [setting["u"]], results)
        assert setting.root.outputs[1] is added
        assert bodies[0].outputs[1] is setting["p"]
        setting.patch.roll_back()
        assert len(setting.root.outputs) == len(bodies[0].outputs) == 1
        assert_consistent(setting.index)


class TestLoopInterface:
    TEXT = """g (float[3] x, float[3] w, int64 m) => (float[3] y) {
        y, l = Loop (m, , x, w) <body = b (int64 i, bool ci, float[3] s, float[3] t)
        => (bool co, float[3] so, float[3] to) { co = Identity(ci) so = Add(s, s) to = Neg(t) }> }"""

    def test_drop_a_carried_value(self) -> None:
        setting = Setting(self.TEXT, "y")
        body = setting.body("body")
        setting.patch.replace(setting["t"], setting["w"])
        setting.patch.set_interface(
            setting.root,
            list(setting.root.inputs)[:3],
            body.inputs[:3],
            body.outputs[:2],
            list(setting.root.outputs)[:1],
        )
        check_reads(setting.patch)
        assert_consistent(setting.index)
        setting.patch.roll_back()
        assert_consistent(setting.index)
        assert export_model(setting.model) == setting.proto

    def test_not_while_it_is_read(self) -> None:
        setting = Setting(self.TEXT, "y")
        body = setting.body("body")
        with pytest.raises(PatchError, match="`t` of Loop of `y`, `l` is dropped but still read"):
            setting.patch.set_interface(
                setting.root,
                list(setting.root.inputs)[:3],
                body.inputs[:3],
                body.outputs[:2],
                list(setting.root.outputs)[:1],
            )


def test_positions_run_out_and_are_renumbered() -> None:
    """Thousands of nodes can be put in one place; their order stays."""
    setting = Setting()
    made: list[Node] = []
    rounds, u = 0, setting["u"]  # which searches the model
    while len(made) < 13_000:
        try:
            (value,) = setting.patch.node("Neg", [u], [u])
            made.append(setting.producer(value))
        except OrderExhausted:
            setting.index.renumber(setting.model.graph)
            rounds += 1
    orders = [node.order for node in made]
    assert orders == sorted(set(orders))
    assert orders[-1] < setting.root.order
    assert rounds == 1


def test_nodes_can_stand_before_new_ones_many_times() -> None:
    """A patch can put each of dozens of nodes before the last one, as nested bodies need."""
    setting = Setting()
    made = [setting.root]
    for _ in range(40):
        (value,) = setting.patch.node("Neg", [setting["u"]], [setting["u"]], before=made[-1])
        made.append(setting.producer(value))
    orders = [node.order for node in made]
    assert orders == sorted(set(orders), reverse=True)


def test_constants_are_merged_and_counted() -> None:
    setting = Setting(
        "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}> { t = Mul(x, a) y = Add(t, b) }",
        "y",
    )
    first, second = setting["a"], setting["b"]
    assert isinstance(first, Constant)
    assert isinstance(second, Constant)
    setting.patch.merge_constant(second, first)
    assert setting.patch.delta["constants"] == -1
    assert setting.node("y").inputs[1] is first
