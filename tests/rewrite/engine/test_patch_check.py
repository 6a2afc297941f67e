"""The checks of a patch: defined reads, and operators that the opset has."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import Match, Rule
from looplift.rewrite.engine.edits import PatchError
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.patch_check import check_reads
from looplift.rewrite.engine.reasons import reasons_at
from looplift.rewrite.graph.ir import Node, Tensor, Variable
from looplift.rules.loops.constructed_sequences import EraseToConstruct

from ...equivalence import assert_equivalent, run_rules
from ...small_models import parse
from ..patch_setting import Setting

MODEL = "g (int64[3] k) => (int64[3] y) { y = Abs(k) }"


class _Spells(Rule[Node]):
    """Another spelling of the absolute value."""

    root = "Abs"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace_node(found, [self.spell(patch, found.inputs[0])])
        patch.toward_normal_form()

    def spell(self, patch: Patch, k: Tensor) -> Tensor:
        raise NotImplementedError


class WritesMax(_Spells):
    """The larger of a number and its negative; of integers since opset 12."""

    def spell(self, patch: Patch, k: Tensor) -> Tensor:
        return patch.node("Max", [k, patch.node("Neg", [k], [k])[0]], [k])[0]


class WritesWhere(_Spells):
    """The number or its negative; Where came with opset 9."""

    def spell(self, patch: Patch, k: Tensor) -> Tensor:
        (negative,) = patch.node("Neg", [k], [k])
        (mask,) = patch.node("Less", [k, patch.constant(np.array(0), like=k)], [k])
        return patch.node("Where", [mask, negative, k], [k])[0]


class WritesAxes(_Spells):
    """The number without an axis that it got; axes are an input since opset 13."""

    def spell(self, patch: Patch, k: Tensor) -> Tensor:
        axes = patch.constant(np.array([0]), like=k)
        (positive,) = patch.node("Max", [k, patch.node("Neg", [k], [k])[0]], [k])
        return patch.node(
            "Squeeze", [patch.node("Unsqueeze", [positive, axes], [k])[0], axes], [k]
        )[0]


class WritesAnAttribute(_Spells):
    """Axes as an attribute, which they are no more since opset 13."""

    def spell(self, patch: Patch, k: Tensor) -> Tensor:
        (positive,) = patch.node("Max", [k, patch.node("Neg", [k], [k])[0]], [k])
        (wide,) = patch.node("Unsqueeze", [positive], [k], {"axes": [0]})
        return patch.node("Squeeze", [wide], [k], {"axes": [0]})[0]


@pytest.mark.parametrize(
    ("rule", "has", "lacks", "words"),
    [
        (WritesMax, 12, 11, "the result needs Max of int64, which opset 11 lacks"),
        (WritesWhere, 9, 8, "the result needs Less of int64, which opset 8 lacks"),
        (WritesAxes, 13, 12, "the result needs Unsqueeze in a form that opset 12 lacks"),
        (WritesAnAttribute, 12, 13, "the result needs Unsqueeze in a form that opset 13 lacks"),
    ],
)
def test_what_the_opset_lacks(rule: type[Rule], has: int, lacks: int, words: str) -> None:
    model = parse(MODEL, has)
    result, trace, _ = run_rules(model, [rule])
    assert [commit.rule for commit in trace.commits()] == [rule.name()]
    assert_equivalent(model, result)
    old = parse(MODEL, lacks)
    result, trace, engine = run_rules(old, [rule])
    assert trace.defects() == []
    assert trace.commits() == []
    assert_equivalent(old, result)
    (node,) = engine.index.walk()
    assert [reason.sentence for reason in reasons_at(engine, node)] == [words]


def test_an_operator_without_inputs() -> None:
    """A list that loses its only element is an empty one, which takes nothing to make."""
    model = parse(
        """g (float[3] x) => (float[3] y, int64 n) {
        s = SequenceConstruct(x) t = SequenceErase(s) n = SequenceLength(t)
        u = SequenceInsert(t, x) y = SequenceAt(u, n) }""",
        21,
        10,
    )
    result, trace, _ = run_rules(model, [EraseToConstruct])
    assert trace.defects() == []
    assert [node.op_type for node in result.graph.node].count("SequenceEmpty") == 1
    assert_equivalent(model, result)


class TestCheck:
    def test_a_value_of_a_body_is_not_visible_outside(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("y"), 0, setting["a"])
        with pytest.raises(PatchError, match="Sin of `y` reads `a` from a body that it is not in"):
            check_reads(setting.patch)

    def test_a_value_of_the_other_branch_is_not_visible(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("a"), 0, setting["q"])
        with pytest.raises(PatchError, match="reads `q` from a body that it is not in"):
            check_reads(setting.patch)

    def test_a_branch_may_not_return_a_value_of_the_other(self) -> None:
        setting = Setting()
        setting.patch.replace(setting["a"], setting["q"])
        with pytest.raises(PatchError, match="reads `q` from a body that it is not in"):
            check_reads(setting.patch)

    def test_a_value_must_be_computed_before(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("u"), 0, setting["y"])
        with pytest.raises(PatchError, match="Exp of `u` reads `y` before it is computed"):
            check_reads(setting.patch)

    def test_an_owner_reads_what_its_bodies_capture(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("p"), 0, setting["y"])
        with pytest.raises(PatchError, match="reads `y` before it is computed"):
            check_reads(setting.patch)

    def test_a_value_nothing_defines(self) -> None:
        setting = Setting()
        setting.patch.replace_input(setting.node("y"), 0, Variable("stray"))
        with pytest.raises(PatchError, match="reads `stray`, which nothing defines"):
            check_reads(setting.patch)

    def test_a_value_of_a_removed_node(self) -> None:
        setting = Setting()
        removed = setting["v"]
        setting.patch.replace(removed, setting["u"])
        setting.patch.remove(setting.root)
        setting.patch.replace_input(setting.node("y"), 0, removed)
        with pytest.raises(PatchError, match="reads `v`, which nothing defines"):
            check_reads(setting.patch)

    def test_a_node_that_is_read_is_not_removed(self) -> None:
        setting = Setting()
        with pytest.raises(PatchError, match="If of `v` is removed but still read"):
            setting.patch.remove(setting.root)
