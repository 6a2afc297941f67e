"""Rules that are wrong: undone without a trace in the model, stopped, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import LoopliftError, Match, Phase, Rule, rewrite
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.errors import ModelError
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.storage.model import import_model
from looplift.rules import PHASES
from looplift.rules.values.constants import FoldConstants
from looplift.rules.values.dead_nodes import EliminateDeadNode

from ..equivalence import assert_equivalent, ops, run_rules
from ..small_models import parse
from .broken_rules import BROKEN, TEXT, ReplacesBySame
from .fact_oracle import Feeds
from .graph_checks import assert_consistent


class TestDefects:
    @pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
    def test_undone_to_the_last_byte(self, rule: type[Rule]) -> None:
        model = parse(TEXT, 21, 10)
        untouched, _, _ = run_rules(model, [])
        result, trace, engine = run_rules(model, [rule])
        assert trace.commits() == []
        (defect,) = trace.defects()
        assert defect.rule == rule.__name__
        assert BROKEN[rule] in defect.reason
        assert defect.phase == "only"
        assert defect.node == ("Sin of `y`" if rule is ReplacesBySame else "If of `v`")
        assert result.SerializeToString() == untouched.SerializeToString()
        assert_consistent(engine.index)

    @pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
    def test_other_rules_go_on(self, rule: type[Rule]) -> None:
        model = parse(TEXT, 21, 10)
        result, trace, _ = run_rules(model, [rule, EliminateDeadNode])
        assert {c.rule for c in trace.commits()} == {"EliminateDeadNode"}
        assert len(trace.defects()) == 1
        assert "Tan" not in ops(result)
        assert_equivalent(model, result, tolerance=1e-6)

    def test_all_of_them_together_with_all_rules(self) -> None:
        model = parse(TEXT, 21, 10)
        phases = (Phase("broken", tuple(BROKEN), "All wrong."), *PHASES)
        result = rewrite(model, rules=phases)
        assert len(result.report.defects) == len(BROKEN)
        assert any(d.startswith("FailsToMatch at If of `v`: ") for d in result.report.defects)
        assert_equivalent(model, result.model, tolerance=1e-6)


class SwapsThen(Rule):
    """Exchanges the branches while the then branch is called `t`."""

    root = "If"
    wanted = "t"

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.branches().then.name == self.wanted, "the branch has another name")
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.swap_branches(node)


class SwapsBack(SwapsThen):
    """Exchanges the branches while the then branch is called `e`."""

    wanted = "e"


class TestRulesThatFight:
    def test_are_stopped_and_named(self) -> None:
        """Each step counts as a negation less; the graph is the same after two."""
        with pytest.raises(LoopliftError) as caught:
            run_rules(parse(TEXT, 21, 10), [SwapsThen, SwapsBack])
        message = str(caught.value)
        assert "SwapsThen" in message
        assert "SwapsBack" in message
        assert "If of `v`" in message

    def test_can_be_watched_with_a_limit(self) -> None:
        _, trace, _ = run_rules(parse(TEXT, 21, 10), [SwapsThen, SwapsBack], step_limit=7)
        assert [c.rule for c in trace.commits()] == ["SwapsThen", "SwapsBack"] * 3 + ["SwapsThen"]


class _AsksThenRaises(Rule):
    """Finds out something about a graph that it then fails to finish."""

    root = "Identity"

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node, "m": m}

    def apply(self, patch: Patch, node: Node, m: Match) -> None:
        reader = m.index.consumers(node.outputs[0])[0]
        patch.replace(node.outputs[0], patch.constant(np.array(5, np.int64), like=node.outputs[0]))
        assert m.facts.scalar(reader.outputs[0]) == 6
        raise RuntimeError("not finished")


def test_what_was_found_out_during_an_undone_patch_is_forgotten() -> None:
    model = parse("""g (int64 x) => (int64 y) <int64 one = {1}> {
        a = Identity(x) b = Add(a, one) y = Mul(b, b) }""")
    result = rewrite(model, rules=[Phase("p", (_AsksThenRaises, FoldConstants), "")])
    assert "not finished" in result.report.defects[0]
    assert ops(result.model)["Add"] == 1
    assert_equivalent(model, result.model, Feeds())


def test_a_rule_that_raises_is_a_reason_too() -> None:
    class Raises(Rule):
        root = "If"

        def match(self, m: Match) -> dict[str, Any]:
            raise ValueError("no such thing")

    result = rewrite(parse(TEXT), rules=[Phase("p", (Raises,), "")])
    node = next(n for n in result.engine.index.walk() if n.op == "If")
    assert "no such thing" in result.reasons(node)[0].sentence


def test_an_error_of_the_model_is_no_defect_of_a_rule(tmp_path: Path) -> None:
    """Weights that are gone when a rule reads them: the user must know, not the rule's author."""
    model = parse("g (float[2] x) => (float[2] y) { n = Neg(w) y = Add(x, n) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    engine = Engine(import_model(stored, str(tmp_path)), PHASES)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="missing"):
        engine.run()
    assert engine.trace.defects() == []


class _FiresInBranches(Rule):
    """Fires, and then raises with the name of the branch."""

    root = "Abs"

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        raise ValueError(f"in {patch.index.graph_of(node).name}")


def test_defects_are_told_of_their_own_node() -> None:
    """Names repeat between bodies."""
    model = parse(
        """g (float[3] x, bool c) => (float[3] y) { y = If (c)
        <then_branch = t () => (float[3] a) { a = Abs(x) },
         else_branch = e () => (float[3] a) { a = Abs(x) }> }"""
    )
    result = rewrite(model, rules=(Phase("only", (_FiresInBranches,), "."),))
    told = {
        result.engine.index.graph_of(node).name: result.reasons(node)[0].sentence
        for node in result.engine.index.walk()
        if node.op == "Abs"
    }
    assert "in t" in told["t"]
    assert "in e" in told["e"]
