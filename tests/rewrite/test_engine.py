"""The engine: phases, limits, defects that leave no trace in the model, and the log."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import LoopliftError, Match, Phase, Rule, rewrite
from looplift.rewrite.engine import Engine
from looplift.rewrite.facts import Assumptions
from looplift.rewrite.ir import Graph, Node, Tensor, Variable
from looplift.rewrite.model import export_model, import_model
from looplift.rewrite.patch import Patch
from looplift.rewrite.rule import ANY, Options, fixture
from looplift.rewrite.trace import Commit, Defect, Event
from looplift.rules import PHASES
from looplift.rules.constants import FoldConstant
from looplift.rules.dead import RemoveUnread
from looplift.rules.decided_if import InlineDecidedIf

from ..equivalence import assert_equivalent, ops, rewritten, run_rules
from ..small_models import parse
from .fact_oracle import Feeds
from .graph_checks import assert_consistent

TEXT = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
    u = Exp(x) dead = Tan(u)
    v = If (c) <then_branch = t () => (float[3] a) <float[3] w = {4, 5, 6}> { p = Mul(u, w) a = Neg(p) },
                else_branch = e () => (float[3] b) { q = Add(u, x) b = Abs(q) }>
    y = Sin(v) z = Cos(u) }"""


class _Broken(Rule):
    """The root of rules that do something wrong."""

    root = "If"

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node}


class RemovesWhatIsRead(_Broken):
    """Takes out a node that is read."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.inputs[0], patch.node("Not", [node.inputs[0]], [node.inputs[0]])[0])
        patch.remove(node)


class ReadsInsideABody(_Broken):
    """Lets the main graph read a value of a branch."""

    def apply(self, patch: Patch, node: Node) -> None:
        branch: Graph = node.attrs["then_branch"]
        patch.replace(node.outputs[0], branch.outputs[0])


class ReadsWhatNobodyDefines(_Broken):
    """Forgets to add the node whose result it uses."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.outputs[0], Variable("nowhere"))


class InlinesBothBranches(_Broken):
    """Runs both branches and makes nothing smaller."""

    def apply(self, patch: Patch, node: Node) -> None:
        then = patch.inline(node.attrs["then_branch"])
        patch.inline(node.attrs["else_branch"])
        patch.node("If", [node.inputs[0]], like=then)
        patch.node("If", [node.inputs[0]], like=then)
        patch.replace(node.outputs[0], then[0])
        patch.remove(node)


class ReplacesBySame(_Broken):
    """Puts an equal node in a node's place, for ever."""

    root = "Sin"

    def apply(self, patch: Patch, node: Node) -> None:
        (again,) = patch.node("Sin", list(node.inputs), like=list(node.outputs))
        patch.replace(node.outputs[0], again)
        patch.remove(node)


class GivesAnotherType(_Broken):
    """Takes the condition for the result."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace_node(node, [node.inputs[0]])


class GivesAnotherShape(_Broken):
    """Takes a scalar for the vector it is the sum of."""

    def apply(self, patch: Patch, node: Node) -> None:
        (result,) = patch.inline(node.attrs["then_branch"])
        total = patch.node("ReduceSum", [result], [result], {"keepdims": 0})
        patch.replace_node(node, total)


class FailsHalfWay(_Broken):
    """Raises after it has changed the graph in many ways."""

    def apply(self, patch: Patch, node: Node) -> None:
        branch: Graph = node.attrs["else_branch"]
        patch.swap_branches(node)
        (result,) = patch.inline(branch)
        patch.replace(node.outputs[0], result)
        patch.constant(branch.opset, like=result)
        raise ValueError("half way")


class FailsToMatch(_Broken):
    """Raises where it should decline."""

    def match(self, m: Match) -> dict[str, Any]:
        raise KeyError("no such thing")

    def apply(self, patch: Patch) -> None:
        raise AssertionError


BROKEN: dict[type[Rule], str] = {
    RemovesWhatIsRead: "is removed but still read",
    ReadsInsideABody: "of a body it is not in",
    ReadsWhatNobodyDefines: "which nothing defines",
    InlinesBothBranches: "makes nothing smaller",
    ReplacesBySame: "makes nothing smaller",
    GivesAnotherType: "`c` replaces `v`, but its type is bool, not float",
    GivesAnotherShape: "its rank is 0, not 1",
    FailsHalfWay: "apply raised",
    FailsToMatch: "match raised KeyError",
}


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
        result, trace, _ = run_rules(model, [rule, RemoveUnread])
        assert {c.rule for c in trace.commits()} == {"RemoveUnread"}
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


LARGER = """g (float[3] x, float[N] n, int64 m, bool c) => (float[3] y, float[?] k) <int64[1] three = {3}> {
    i0 = Identity(x) s = Shape(i0) e = Equal(s, three) d = Squeeze(e) w = Exp(i0) w2 = Exp(x) dead = Sin(w)
    a = If (d) <then_branch = t () => (float[3] p) { p = Add(w, w2) },
                else_branch = e () => (float[3] q) { q = Neg(w) }>
    nc = Not(c)
    b = If (nc) <then_branch = t2 () => (float[3] p) { o = Tanh(a) p = Abs(o) },
                 else_branch = e2 () => (float[3] q) { r = Tanh(a) q = Cos(r) }>
    l = Loop (m, , b) <body = body (int64 i, bool ci, float[3] st) => (bool co, float[3] so) {
        co = Identity(ci) h = Exp(x) g = Mul(st, h)
        so = If (c) <then_branch = t3 () => (float[3] p) { p = Tanh(g) }, else_branch = e3 () => (float[3] q) { q = Sigmoid(g) }> }>
    y = Add(l, a) k = Concat<axis=0>(n, l) }"""
FEEDS = Feeds(sizes=(0, 2), values={"m": [0, 1, 3]})


class TestStepLimit:
    def test_every_prefix_of_a_rewrite_is_right(self) -> None:
        model = parse(LARGER, 21, 10)
        complete = rewrite(model)
        total = len(complete.trace.commits())
        assert total > 10
        for limit in range(total + 1):
            part = rewrite(model, step_limit=limit)
            assert len(part.trace.commits()) == limit
            assert_equivalent(model, part.model, FEEDS, 1e-5)
        assert part.model == complete.model

    def test_none_changes_nothing(self) -> None:
        model = parse(LARGER, 21, 10)
        assert rewrite(model, step_limit=0).model == rewrite(model, rules=()).model == model

    def test_the_same_steps_every_time(self) -> None:
        model = parse(LARGER, 21, 10)
        first, second = rewrite(model), rewrite(model)
        assert [(c.rule, c.node) for c in first.trace.commits()] == [
            (c.rule, c.node) for c in second.trace.commits()
        ]
        assert first.model == second.model


class ReluOfAbs(Rule):
    """Relu of Abs is Abs: a rule of a user."""

    root = "Relu"

    def match(self, m: Match) -> dict[str, Any]:
        inner = m.producer(m.node.inputs[0], "Abs")
        m.need(inner, "`{}` is not the result of Abs", m.node.inputs[0].name, at=m.node.inputs[0])
        return {"node": m.node, "value": m.node.inputs[0]}

    def apply(self, patch: Patch, node: Node, value: Tensor) -> None:
        patch.replace(node.outputs[0], value)
        patch.remove(node)
        patch.note("Abs is never negative")


class TestUsersRules:
    TEXT = "g (float[3] x) => (float[3] y) { a = Abs(x) b = Relu(a) c = Relu(b) y = Neg(c) }"

    def test_alone(self) -> None:
        phase = Phase("mine", (ReluOfAbs,), "My rule.")
        model = parse(self.TEXT, 21, 10)
        result = rewrite(model, rules=[phase])
        assert ops(result.model) == {"Abs": 1, "Neg": 1}
        assert result.report.commits == {"ReluOfAbs": 2}
        assert result.report.notes == ["Abs is never negative"] * 2
        assert_equivalent(model, result.model)

    def test_beside_the_others(self) -> None:
        model = parse(self.TEXT, 21, 10)
        phases = [*PHASES, Phase("mine", (ReluOfAbs,), "My rule.")]
        assert ops(rewrite(model, rules=phases).model) == {"Abs": 1, "Neg": 1}

    def test_explained(self) -> None:
        model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 21, 10)
        result = rewrite(model, rules=[Phase("mine", (ReluOfAbs,), "My rule.")])
        (node,) = result.engine.index.walk()
        (reason,) = result.engine.explain(node)
        assert (reason.rule, reason.sentence, reason.at) == (
            "ReluOfAbs", "`x` is not the result of Abs", "`x`",
        )  # fmt: skip


class TestPhases:
    def test_later_phases_see_what_earlier_ones_left(self) -> None:
        seen: list[str] = []

        class Looks(Rule):
            """Writes down which nodes it meets."""

            root = ANY

            def match(self, m: Match) -> dict[str, Any]:
                seen.append(m.node.op)
                return m.need(None, "only looks")

        model = parse(TEXT, 21, 10)
        first = Phase("clean", (RemoveUnread,), "Goes first.")
        rewrite(model, rules=[first, Phase("look", (Looks,), "Goes second.")])
        assert "Tan" not in seen
        assert seen.index("Mul") < seen.index("If")
        assert seen.index("Abs") < seen.index("If")

    def test_a_commit_in_a_later_phase_wakes_earlier_ones(self) -> None:
        text = """g (float[3] x) => (float[3] y) <bool c = {1}> { u = Exp(x)
            y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                        else_branch = e () => (float[3] b) { b = Abs(u) }> }"""
        phases = [
            Phase("clean", (RemoveUnread,), "Goes first."),
            Phase("branches", (InlineDecidedIf,), "Frees the Exp."),
        ]
        result = rewrite(parse(text, 21, 10), rules=phases)
        assert ops(result.model) == {"Neg": 1}

    def test_a_fact_that_becomes_known_wakes_its_readers(self) -> None:
        """The inner If can be decided once the outer one is gone, across a loop's state."""
        text = """g (float[1,3] x, float[3,3] w, int64 m) => (float[?,3] y) <int64[1] zero = {0}, int64 two = {2}> {
            s = Shape(x) d = Gather(s, zero) e = Equal(d, zero) c = Squeeze(e)
            v = If (c) <then_branch = t () => (float[3] a) { a = Squeeze(x, zero) },
                        else_branch = e () => (float[1,3] b) { b = Identity(x) }>
            y = Loop (m, , v) <body = body (int64 i, bool ci, float[?,3] st) => (bool co, float[?,3] so) {
                co = Identity(ci) h = Shape(st) r = Size(h) f = Equal(r, two)
                so = If (f) <then_branch = t2 () => (float[?,3] p) { p = MatMul(st, w) },
                             else_branch = e2 () => (float[?,3] q) { q = Neg(st) }> }> }"""
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 2]}), 1e-5)
        assert "If" not in ops(result.model)


class TestTrace:
    def test_every_event_is_told_in_order(self) -> None:
        heard: list[Event] = []
        phases = (Phase("broken", (FailsToMatch,), "Wrong."), *PHASES)
        result = rewrite(parse(LARGER, 21, 10), rules=phases, on_event=heard.append)
        assert heard == result.trace.events
        commits = [e for e in heard if isinstance(e, Commit)]
        assert [c.step for c in commits] == list(range(1, len(commits) + 1))
        assert [e for e in heard if isinstance(e, Defect)] == result.trace.defects()
        assert all(c.edits and c.seconds >= 0 for c in commits)
        assert {c.phase for c in commits} <= {phase.name for phase in PHASES}
        for commit in commits:
            assert result.trace.attempts[commit.rule] >= 1

    def test_places(self) -> None:
        text = """g (float[3] x, int64 m, bool c) => (float[3] y) {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                co = Identity(ci)
                so = If (c) <then_branch = t () => (float[3] p) { dead = Exp(s) p = Neg(s) },
                             else_branch = e () => (float[3] q) { q = Abs(s) }> }> }"""
        _, trace, _ = run_rules(parse(text, 21, 10), [RemoveUnread])
        (commit,) = trace.commits()
        assert commit.node == "Exp of `dead`"
        assert commit.place == "then_branch of If of `so`, in body of Loop of `y`"
        assert commit.edits == ("removed Exp of `dead`",)

    def test_nodes_are_called_by_their_names(self) -> None:
        text = "g (float[3] x) => (float[3] y) { [spare] dead = Exp(x) y = Neg(x) }"
        _, trace, _ = run_rules(parse(text, 21, 10), [RemoveUnread])
        assert trace.commits()[0].node == "Exp `spare`"


def _again(model: onnx.ModelProto, **options: Any) -> None:
    """A second rewrite changes nothing."""
    second = rewrite(model, **options)
    assert second.trace.commits() == []
    assert second.model == model


class TestFixpoint:
    @pytest.mark.parametrize("text", [TEXT, LARGER])
    def test_of_text(self, text: str) -> None:
        _again(rewrite(parse(text, 21, 10)).model)

    @pytest.mark.parametrize("rule", dict.fromkeys(r for p in PHASES for r in p.rules), ids=lambda r: r.name())  # fmt: skip
    def test_of_fixtures(self, rule: type[Rule]) -> None:
        _again(rewrite(fixture(rule.fires)).model)

    def test_of_the_matrix(self, matrix_dir: Path) -> None:
        for path in sorted(matrix_dir.glob("*.onnx")):
            _again(rewrite(path).model)

    def test_of_the_collection(self, corpus: Path) -> None:
        for path in sorted(corpus.glob("*.onnx"))[::2]:
            _again(rewrite(path).model)


class TestOrder:
    """Rules may run in any order within their phase: the result may differ, its outputs not."""

    @pytest.mark.parametrize("seed", range(4))
    def test_of_rules(self, seed: int) -> None:
        rng = random.Random(seed)
        phases = [
            Phase(p.name, tuple(rng.sample(p.rules, len(p.rules))), p.summary) for p in PHASES
        ]
        rng.shuffle(phases)
        rewritten(parse(LARGER, 21, 10), FEEDS, 1e-5, rules=phases)

    def test_of_rules_on_the_matrix(self, matrix_dir: Path) -> None:
        rng = random.Random(7)
        for path in sorted(matrix_dir.glob("*.onnx")):
            rules = dict.fromkeys(rule for phase in PHASES for rule in phase.rules)
            phase = Phase("all", tuple(rng.sample(list(rules), len(rules))), "Everything.")
            feeds = Feeds(sizes=(1, 3), values={"m": [0, 1, 3]})
            rewritten(onnx.load(path), feeds, 1e-5, rules=[phase])


class TestConsistency:
    """After a rewrite the index still says what the graphs say, and facts are not contradicted."""

    @pytest.mark.parametrize("text", [TEXT, LARGER])
    def test_of_the_index(self, text: str) -> None:
        imported = import_model(parse(text, 21, 10))
        engine = Engine(imported, PHASES, Assumptions(), Options())
        engine.run()
        assert_consistent(engine.index)

    def test_of_the_index_on_the_matrix(self, matrix_dir: Path) -> None:
        for path in sorted(matrix_dir.glob("*.onnx")):
            imported = import_model(onnx.load(path))
            engine = Engine(imported, PHASES, Assumptions(), Options())
            engine.run()
            assert_consistent(engine.index)
            onnx.checker.check_model(export_model(imported), full_check=True)


def test_thousands_of_ifs_take_linear_time() -> None:
    """Each decided If is inlined into one long graph."""

    def seconds(count: int) -> float:
        ifs = " ".join(
            f"""v{i + 1} = If (c) <then_branch = t () => (float[3] a) {{ p = Neg(v{i}) a = Exp(p) }},
            else_branch = e () => (float[3] b) {{ b = Abs(v{i}) }}>"""
            for i in range(count)
        )
        model = parse(
            f"g (float[3] v0) => (float[3] v{count}) <bool c = {{1}}> {{ {ifs} }}", 21, 10
        )
        started = time.process_time()
        result = rewrite(model)
        assert ops(result.model) == {"Neg": count, "Exp": count}
        return time.process_time() - started

    small = min(seconds(100) for _ in range(3))
    assert seconds(1000) < 30 * small  # ten times the size; quadratic time would be 100


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
    result = rewrite(model, rules=[Phase("p", (_AsksThenRaises, FoldConstant), "")])
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
    assert "no such thing" in result.engine.explain(node)[0].sentence
