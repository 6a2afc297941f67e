"""The engine: phases, limits, the trace, defects, and properties of every rewrite."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import LoopliftError, Match, Phase, Rule, rewrite
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import ANY, Options, fixture
from looplift.rewrite.engine.trace import Commit, Defect, Event
from looplift.rewrite.errors import ModelError
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Node, Tensor
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rules import PHASES
from looplift.rules.branches.common_code import HoistCommonBranchCode
from looplift.rules.branches.decided_if import InlineDecidedIf
from looplift.rules.values.constants import FoldConstants
from looplift.rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...small_models import parse
from ..broken_rules import BROKEN, TEXT, FailsToMatch, ReplacesBySame
from ..fact_oracle import Feeds
from ..graph_checks import assert_consistent

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

    def test_the_same_commits_every_time(self) -> None:
        model = parse(LARGER, 21, 10)
        first, second = rewrite(model), rewrite(model)
        assert [(c.rule, c.node) for c in first.trace.commits()] == [
            (c.rule, c.node) for c in second.trace.commits()
        ]
        assert first.model == second.model


class ReluOfAbs(Rule[Tensor]):
    """Relu of Abs is Abs: a rule of a user."""

    root = "Relu"

    def match(self, m: Match) -> Tensor:
        inner = m.producer(m.node.inputs[0], "Abs")
        m.need(inner, "`{}` is not the result of Abs", m.node.inputs[0].name, at=m.node.inputs[0])
        return m.node.inputs[0]

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_node(patch.root, [found])
        patch.note("Abs is never negative")


class TestUsersRules:
    TEXT = "g (float[3] x) => (float[3] y) { a = Abs(x) b = Relu(a) c = Relu(b) y = Neg(c) }"

    def test_alone(self) -> None:
        phase = Phase("mine", (ReluOfAbs,), "My rule.")
        model = parse(self.TEXT, 21, 10)
        result = rewrite(model, rules=[phase])
        assert ops(result.model) == {"Abs": 1, "Neg": 1}
        assert result.report.commits == {"ReluOfAbs": 2}
        assert result.report.notes == ["Abs is never negative"]
        assert_equivalent(model, result.model)

    def test_with_the_built_in_rules(self) -> None:
        model = parse(self.TEXT, 21, 10)
        phases = [*PHASES, Phase("mine", (ReluOfAbs,), "My rule.")]
        assert ops(rewrite(model, rules=phases).model) == {"Abs": 1, "Neg": 1}

    @pytest.mark.parametrize(
        ("method", "error", "reason"),
        [
            ("match", SystemExit(7), "match raised SystemExit: 7"),
            ("apply", SystemExit(7), "apply raised SystemExit: 7"),
            ("apply", None, "a note is a sentence, not 42"),
        ],
    )
    def test_errors_are_reported(self, method: str, error: SystemExit | None, reason: str) -> None:
        class Wrong(ReluOfAbs):
            """Raises in `match` or in `apply`."""

            def match(self, m: Match) -> Tensor:
                if method == "match" and error:
                    raise error
                return super().match(m)

            def apply(self, patch: Patch, found: Tensor) -> None:
                if error:
                    raise error
                patch.note(42)  # type: ignore[arg-type]

        model = parse(self.TEXT, 21, 10)
        result = rewrite(model, rules=[Phase("mine", (Wrong,), "My rule.")])
        assert result.report.defects
        assert all(reason in defect for defect in result.report.defects)
        assert result.model.graph.node == model.graph.node

    def test_a_rule_that_exits_in_its_constructor(self) -> None:
        class Gone(ReluOfAbs):
            """Ends the program."""

            def __init__(self) -> None:
                raise SystemExit(3)

        with pytest.raises(LoopliftError, match="cannot be made: __init__ raised SystemExit: 3"):
            rewrite(parse(self.TEXT, 21, 10), rules=[Phase("mine", (Gone,), "My rule.")])

    def test_explained(self) -> None:
        model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 21, 10)
        result = rewrite(model, rules=[Phase("mine", (ReluOfAbs,), "My rule.")])
        (node,) = result.engine.index.walk()
        (reason,) = result.reasons(node)
        assert (reason.rule, reason.sentence, reason.at) == (
            "ReluOfAbs", "`x` is not the result of Abs", "`x`",
        )  # fmt: skip


class TestPhases:
    def test_later_phases_see_what_earlier_ones_left(self) -> None:
        seen: list[str] = []

        class Looks(Rule):
            """Records which nodes it is tried at."""

            root = ANY

            def match(self, m: Match) -> Node:
                seen.append(m.node.op)
                return m.need(None, "only looks")

        model = parse(TEXT, 21, 10)
        first = Phase("clean", (EliminateDeadNode,), "Goes first.")
        rewrite(model, rules=[first, Phase("look", (Looks,), "Goes second.")])
        assert "Tan" not in seen
        assert seen.index("Mul") < seen.index("If")
        assert seen.index("Abs") < seen.index("If")

    def test_a_commit_in_a_later_phase_requeues_nodes_of_earlier_ones(self) -> None:
        text = """g (float[3] x) => (float[3] y) <bool c = {1}> { u = Exp(x)
            y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                        else_branch = e () => (float[3] b) { b = Abs(u) }> }"""
        phases = [
            Phase("clean", (EliminateDeadNode,), "Goes first."),
            Phase("branches", (InlineDecidedIf,), "Frees the Exp."),
        ]
        result = rewrite(parse(text, 21, 10), rules=phases)
        assert ops(result.model) == {"Neg": 1}

    def test_a_commit_requeues_the_owners_of_all_bodies_around_it(self) -> None:
        """The branches are equal once the bodies of their loops are."""
        text = """g (float[3] x, bool c, int64 n) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] a) {
                a = Loop (n, "", x) <body = p (int64 i, bool e, float[3] s) => (bool f, float[3] r) {
                    f = And(e, e) u = Identity(s) r = Neg(u) }> },
              else_branch = e () => (float[3] b) {
                b = Loop (n, "", x) <body = q (int64 j, bool g, float[3] v) => (bool h, float[3] w) {
                    h = And(g, g) w = Neg(v) }> }> }"""
        phases = [
            Phase("branches", (HoistCommonBranchCode,), "Goes first."),
            Phase("clean", (EliminateIdentity,), "Makes the loops equal."),
        ]
        result = rewrite(parse(text, 21, 10), rules=phases)
        assert ops(result.model)["Loop"] == 1

    def test_a_new_fact_requeues_its_readers(self) -> None:
        """The inner If can be decided after the outer one, through a carried value."""
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
    def test_events_are_reported_in_order(self) -> None:
        heard: list[Event] = []
        phases = (Phase("broken", (FailsToMatch,), "Wrong."), *PHASES)
        result = rewrite(parse(LARGER, 21, 10), rules=phases, on_event=heard.append)
        assert heard == result.trace.events
        commits = [e for e in heard if isinstance(e, Commit)]
        assert [c.number for c in commits] == list(range(1, len(commits) + 1))
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
        _, trace, _ = run_rules(parse(text, 21, 10), [EliminateDeadNode])
        (commit,) = trace.commits()
        assert commit.node == "Exp of `dead`"
        assert commit.place == "then_branch of If of `so`, in body of Loop of `y`"
        assert commit.edits == ("removed Exp of `dead`",)

    def test_nodes_are_called_by_their_names(self) -> None:
        text = "g (float[3] x) => (float[3] y) { [spare] dead = Exp(x) y = Neg(x) }"
        _, trace, _ = run_rules(parse(text, 21, 10), [EliminateDeadNode])
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
        engine = Engine(imported, PHASES, Assertions(), Options())
        engine.run()
        assert_consistent(engine.index)

    def test_of_the_index_on_the_matrix(self, matrix_dir: Path) -> None:
        for path in sorted(matrix_dir.glob("*.onnx")):
            imported = import_model(onnx.load(path))
            engine = Engine(imported, PHASES, Assertions(), Options())
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


class TestDefects:
    @pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
    def test_the_model_is_unchanged_to_the_last_byte(self, rule: type[Rule]) -> None:
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
    def test_other_rules_continue(self, rule: type[Rule]) -> None:
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


class SwapsThen(Rule[Node]):
    """Exchanges the branches while the then branch is called `t`."""

    root = "If"
    wanted = "t"

    def match(self, m: Match) -> Node:
        m.need(m.branches().then.name == self.wanted, "the branch has another name")
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.swap_branches(found)


class SwapsBack(SwapsThen):
    """Exchanges the branches while the then branch is called `e`."""

    wanted = "e"


class TestRulesThatUndoEachOther:
    def test_are_stopped_and_named(self) -> None:
        """Each commit counts as one negation less; two of them restore the graph."""
        with pytest.raises(LoopliftError) as caught:
            run_rules(parse(TEXT, 21, 10), [SwapsThen, SwapsBack])
        message = str(caught.value)
        assert "SwapsThen" in message
        assert "SwapsBack" in message
        assert "If of `v`" in message

    def test_can_be_watched_with_a_limit(self) -> None:
        _, trace, _ = run_rules(parse(TEXT, 21, 10), [SwapsThen, SwapsBack], step_limit=7)
        assert [c.rule for c in trace.commits()] == ["SwapsThen", "SwapsBack"] * 3 + ["SwapsThen"]


class _InfersThenRaises(Rule[Node]):
    """Derives a fact of a graph that it then fails to finish."""

    root = "Identity"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        (result,) = found.outputs
        reader = patch.index.consumers(result)[0]
        patch.replace(result, patch.constant(np.array(5, np.int64), like=result))
        assert patch.facts.scalar(reader.outputs[0]) == 6
        raise RuntimeError("not finished")


def test_facts_derived_during_an_undone_patch_are_dropped() -> None:
    model = parse("""g (int64 x) => (int64 y) <int64 one = {1}> {
        a = Identity(x) b = Add(a, one) y = Mul(b, b) }""")
    result = rewrite(model, rules=[Phase("p", (_InfersThenRaises, FoldConstants), "")])
    assert "not finished" in result.report.defects[0]
    assert ops(result.model)["Add"] == 1
    assert_equivalent(model, result.model, Feeds())


def test_a_rule_that_raises_gives_a_reason() -> None:
    class Raises(Rule):
        root = "If"

        def match(self, m: Match) -> Node:
            raise ValueError("no such thing")

    result = rewrite(parse(TEXT), rules=[Phase("p", (Raises,), "")])
    node = next(n for n in result.engine.index.walk() if n.op == "If")
    assert "no such thing" in result.reasons(node)[0].sentence


def test_an_error_of_the_model_is_not_a_defect(tmp_path: Path) -> None:
    """A missing file of weights is the user's problem, not the rule's."""
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


class _FiresInBranches(Rule[Node]):
    """Fires, and then raises with the name of the branch."""

    root = "Abs"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        raise ValueError(f"in {patch.index.graph_of(found).name}")


def test_defects_belong_to_their_node() -> None:
    """Names repeat between bodies."""
    model = parse(
        """g (float[3] x, bool c) => (float[3] y) { y = If (c)
        <then_branch = t () => (float[3] a) { a = Abs(x) },
         else_branch = e () => (float[3] a) { a = Abs(x) }> }"""
    )
    result = rewrite(model, rules=(Phase("only", (_FiresInBranches,), "."),))
    reasons = {
        result.engine.index.graph_of(node).name: result.reasons(node)[0].sentence
        for node in result.engine.index.walk()
        if node.op == "Abs"
    }
    assert "in t" in reasons["t"]
    assert "in e" in reasons["e"]
