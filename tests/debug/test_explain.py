from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from looplift import AssumptionError, LoopliftError, Match, Miss, Phase, Rule, rewrite
from looplift.api import rewrite_request
from looplift.commands.arguments import parse_assumptions
from looplift.debug.explain.explain import explain, most_common_reasons
from looplift.debug.explain.recipes import RECIPES, framework_of, recipe
from looplift.debug.explain.render import render_summary
from looplift.debug.explain.rule_effects import effect_of
from looplift.debug.rule_reasons import sentences
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.storage.summary import count_operators
from looplift.rules.branches.decided_if import InlineDecidedIf
from looplift.rules.loops.carried_values import EliminateDeadCarriedValues
from looplift.rules.loops.sequence_accumulation import SequenceInsertToScanOutput
from looplift.rules.loops.trivial_trip_counts import InlineSingleTripLoop
from looplift.rules.recurrence import FuseRecurrence
from looplift.rules.recurrence.length_masks import UNKNOWN_MASK
from looplift.rules.vectorization.after_loop import VectorizeAfterLoop

from ..small_models import parse
from .explained import TEXT, model, shown


def count_control_flow(given: onnx.ModelProto) -> Counter[str]:
    counts = count_operators(given)
    return Counter({op: counts.get(op, 0) for op in ("If", "Loop", "Scan")})


class TestReasons:
    def test_value_place_and_origin(self) -> None:
        found = explain(Request.of(model()), rule="InlineDecidedIf")
        (left,) = (each for each in found.remaining if each.op == "If")
        (why,) = left.why
        assert why.reason == "the condition `c` is not known before the run"
        assert why.template == "the condition `{}` is not known before the run"
        assert (why.at, why.value) == ("`c`", "bool[]")
        assert why.passed == 0
        assert why.derivation == [
            "`c` = Equal(`rate`, 16000): bool[]",
            "`rate` = input of the model: int64[]",
        ]
        assert why.remedies == ["--input rate=…"]
        text = shown(found)
        assert [trial.option for trial in left.trials] == ["--input rate=16000"]
        assert "try --input rate=16000: InlineDecidedIf removes it; 1 Loop remains" in text
        assert "from `c` = Equal(`rate`, 16000)" in text

    def test_the_rule_that_would_remove_the_node_comes_first(self) -> None:
        branch, loop = explain(Request.of(model())).remaining
        assert [why.rule for why in branch.why][:2] == ["InlineDecidedIf", "IfToWhere"]
        assert loop.why[0].rule == "FuseRecurrence"
        for left, leading in ((branch, 2), (loop, 1)):
            rest = left.why[leading:]
            removes = [why.removes for why in rest]
            assert removes == sorted(removes, reverse=True)
            passed = [why.passed for why in rest if why.removes]
            assert passed == sorted(passed, reverse=True)

    def test_a_body_says_what_changes(self) -> None:
        text = TEXT.replace(
            "on = Identity(go)",
            "one = ReduceMax<keepdims=0>(s) big = Cast<to=7>(one) on = Less(big, m)",
        )
        found = explain(Request.of(model(text)), node="p")
        chains = [line for left in found.remaining for why in left.why for line in why.derivation]
        assert any("carried value of Loop" in line for line in chains)

    def test_one_node(self) -> None:
        given = Request.of(model())
        assert [left.op for left in explain(given, node="p").remaining] == ["Loop"]
        assert [left.op for left in explain(given, node="y").remaining] == ["If"]
        with pytest.raises(AssumptionError, match="no node 'x'"):
            explain(given, node="x")

    def test_rules_that_are_not_there(self) -> None:
        with pytest.raises(AssumptionError, match="Perhaps FuseRecurrence is meant"):
            explain(Request.of(model()), rule="FuseRecurence")
        with pytest.raises(AssumptionError, match="no rule 'Nonsense'"):
            explain(Request.of(model()), rule="Nonsense")

    def test_a_change_that_was_undone(self) -> None:
        class Loses(Rule[Node]):
            """Removes what is read."""

            root = "If"

            def match(self, m: Match) -> Node:
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                patch.remove(found)

        found = explain(Request.of(model(), phases=(Phase("bad", (Loses,), ""),)), node="y")
        (why,) = found.remaining[0].why
        assert "its change is wrong and was undone" in why.reason

    def test_nothing_remains(self) -> None:
        found = explain(Request.of(model(), Assertions({"rate": 8000})))
        assert found.remaining == []


ADVICE = """g (float[N] x, int64 rate, bool flag, float[N,K] big) => (float[N] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] ax = {0}> {
    %s
    y = If (c) <then_branch = t () => (float[N] p) { p = Neg(x) },
                else_branch = e () => (float[N] q) { q = Exp(x) }> }"""


class TestRulesOfOtherNodes:
    def test_where_such_a_rule_got_furthest(self) -> None:
        text = "g (float[N] x) => (float[N] y) { a = Sin(x) b = Sin(a) y = Add(a, b) }"
        found = explain(Request.of(model(text)), rule="EliminateCommonSubexpression")
        assert found.rule == "EliminateCommonSubexpression"
        assert 1 <= len(found.remaining) <= 5
        reasons = [left.why[0].reason for left in found.remaining]
        assert "no other node with the same operands" in reasons[0]
        assert len({left.why[0].template for left in found.remaining}) == len(found.remaining)
        output = shown(found)
        assert "EliminateCommonSubexpression gets furthest at these nodes" in output
        assert "no control flow" not in output

    def test_no_such_node(self) -> None:
        text = "g (float[N] x) => (float[N] y) { y = Sin(x) }"
        found = explain(Request.of(model(text)), rule="EliminateRedundantReshape")
        assert found.remaining == []
        assert "no node is a root of EliminateRedundantReshape" in shown(found)


CONVOLUTION = """g (float[T, 1, 1, N] xs, float[1, 1, N] h, float[1, 1, 3] w) => (float[1, 1, N] last) {
    axis = Constant<value_int = 0>()
    sizes = Shape(xs)
    count = Gather(sizes, axis)
    last = Loop(count, , h) <
        body = step (int64 i, bool c, float[1, 1, N] s) => (bool d, float[1, 1, N] next) {
            d = Identity(c)
            x = Gather(xs, i)
            a = Conv<pads = [1, 1]>(s, w)
            b = Add(a, x)
            e = Tanh(b)
            f = Sin(e)
            k = Exp(f)
            l = Cos(k)
            m = Abs(l)
            n = Sqrt(m)
            next = Tanh(n)
        }
    >
}"""


WINDOWS = """frames (float[B,L] x) => (float[B,F] y)
    <int64 hop = {4}, int64 win = {8}, int64[1] nil = {0}, int64[1] one = {1}, int64 uno = {1},
     float[8] hann = {0, 1, 2, 3, 3, 2, 1, 0}> {
      s = Shape (x) l = Gather (s, uno) d = Sub (l, win) n0 = Div (d, hop) n = Add (n0, uno)
      e = SequenceEmpty <dtype = 1> ()
      q = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[]) p) => (bool co, seq(float[]) po) {
        co = Identity (ci) a = Mul (i, hop) z = Add (a, win) a1 = Unsqueeze (a, nil) z1 = Unsqueeze (z, nil)
        w = Slice (x, a1, z1, one) v = Mul (w, hann) r = ReduceSum <keepdims = 1> (v, one)
        po = SequenceInsert (p, r) }>
      y = ConcatFromSequence <axis = 1> (q) }"""


def test_the_size_from_which_on_a_loop_over_windows_runs() -> None:
    (loop,) = explain(Request.of(parse(WINDOWS, opset=17))).remaining
    (trial,) = [trial for trial in loop.trials if trial.removes]
    assert trial.option == '--dim "L>=5"'


def test_a_reversed_mask_is_not_called_a_prefix_mask() -> None:
    """The mask that it reverses may be one."""
    text = """g (float[T,B,3] x, bool[T,B] mask, float[B,3] h0) => (float[B,3] z)
      <float[3,3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64[1] back = {-1}, int64[1] nil = {0},
       int64[1] low = {-9223372036854775808}, int64[1] one = {1}> {
      xr = Slice (x, back, low, nil, back) mr = Slice (mask, back, low, nil, back)
      z = Scan <num_scan_inputs = 2, body = b (float[B,3] h, float[B,3] xt, bool[B] m)
        => (float[B,3] hn) {
          p = MatMul (h, w) a = Add (p, xt) n = Tanh (a) c = Unsqueeze (m, one) hn = Where (c, n, h) }>
        (h0, xr, mr) }"""
    (loop,) = explain(Request.of(parse(text, opset=17))).remaining
    assert [trial.option for trial in loop.trials] == ['--prefix-mask "mask axis 0"']


def test_why_it_is_no_recurrence_comes_before_why_it_stays_a_loop() -> None:
    (left,) = explain(Request.of(model(CONVOLUTION))).remaining
    rules = [why.rule for why in left.why]
    assert rules[0] == "FuseRecurrence"
    assert "Conv" in left.why[0].reason
    (trial,) = left.trials
    assert trial.option == '--dim "T>=1"'
    assert trial.effect == "LoopToScan makes it a Scan"


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_a_loop_that_carries_nothing_is_not_explained_as_a_recurrence(op: str) -> None:
    text = """g (float[T,3,3] x) => (float[T] y) <int64 zero = {0}, bool always = {1}> {
        sizes = Shape(x) n = Gather(sizes, zero)
        y = Loop(n, always) <body = b (int64 i, bool c) => (bool d, float row) {
            d = Identity(c) m = Gather(x, i) row = Det(m) }> }"""
    if op == "Scan":
        text = """g (float[T,3,3] x) => (float[T] y) {
            y = Scan<num_scan_inputs = 1, body = b (float[3,3] m) => (float row) {
                row = Det(m) }>(x) }"""
    (left,) = explain(Request.of(model(text))).remaining
    assert left.why[0].rule == "VectorizeAfterLoop"
    assert left.why[0].reason == "there is no batching rule for Det of `row`"


@pytest.mark.parametrize("engine", [None, "onnxruntime", "tvm"])
def test_what_a_loop_costs(engine: str | None) -> None:
    (left,) = explain(Request.of(model(CONVOLUTION), engine=engine)).remaining
    assert left.cost.startswith("if it stays: onnxruntime runs the body node by node")


class TestAdvice:
    """The advice is about the value for which a check failed."""

    @pytest.mark.parametrize(
        ("condition", "remedies", "beyond", "trials"),
        [
            ("c = Equal(rate, one)", ["--input rate=…"], [], ["--input rate=1"]),
            ("c = And(flag, flag)", ["--input flag=…"], [], ["--input flag=true"]),
            (
                "s = Shape(big) n = Gather(s, one) c = Greater(n, one)",
                ["--dim K=…"],
                [],
                ['--dim "K>=2"', "--dim K=1"],
            ),
            ("s = Size(x) c = Greater(s, one)", ["--dim N=…"], [], ['--dim "N>=2"', "--dim N=1"]),
            ("m = ReduceMax<keepdims=0>(big) c = Cast<to=9>(m)", [], ["the elements of `big`"], []),
            (
                "m = ReduceMax<keepdims=0>(x) b = Cast<to=9>(m) c = And(b, flag)",
                ["--input flag=…"],
                ["the elements of `x`"],
                ["--input flag=false"],
            ),
        ],
    )
    def test_conditions(
        self, condition: str, remedies: list[str], beyond: list[str], trials: list[str]
    ) -> None:
        found = explain(Request.of(model(ADVICE % condition)), rule="InlineDecidedIf")
        (why,) = found.remaining[0].why
        assert (why.remedies, why.unassertable) == (remedies, beyond)
        tried = [trial.option for trial in found.remaining[0].trials]
        assert tried == trials
        assert ("no option can assert" in shown(found)) == (bool(beyond) and not trials)

    def test_sizes_without_a_name(self) -> None:
        text = ADVICE.replace("float[N,K] big", "float[?,?] big")
        condition = "s = Shape(big) n = Gather(s, one) c = Greater(n, one)"
        found = explain(Request.of(model(text % condition)), rule="InlineDecidedIf")
        assert found.remaining[0].why[0].remedies == ["--shape big=…"]
        named = explain(
            Request.of(model(text % condition), Assertions(shapes={"big": ("N", "one")}))
        )
        assert [trial.option for trial in named.remaining[0].trials] == [
            '--dim "one>=2"',
            "--dim one=1",
        ]

    def test_the_branch_and_not_the_condition(self) -> None:
        """If the work of a branch is the obstacle, the size decides, not the condition."""
        found = explain(Request.of(model(ADVICE % "c = Equal(rate, one)")), rule="IfToWhere")
        (why,) = found.remaining[0].why
        assert why.reason == "the number of elements of `p` is not known"
        assert why.remedies == ["--dim N=…"]

    def test_a_state_that_ends_a_loop(self) -> None:
        text = TEXT.replace(
            "on = Identity(go)", "one = ReduceMax<keepdims=0>(s) on = Cast<to=9>(one)"
        )
        found = explain(Request.of(model(text)), node="p", rule="FuseRecurrence")
        (why,) = found.remaining[0].why
        assert why.reason == "it may end early: `on` is computed in each iteration"
        assert why.at == "`on`"
        assert why.unassertable == ["the carried value `s` of Loop `p`"]


class TestOtherNodes:
    def test_rules_that_start_elsewhere(self) -> None:
        """The CumSum is what keeps the loop around it from being a recurrence."""
        text = """g (float[T,2,3] x, float[2,3] h0) => (float[2,3] h) <int64 axis = {1}> {
            h = Scan <num_scan_inputs=1, body = b (float[2,3] s, float[2,3] xt) => (float[2,3] so) {
                a = Add(s, xt) k = CumSum(a, axis) so = Tanh(k) }> (h0, x) }"""
        found = explain(Request.of(model(text)), node="k")
        (left,) = found.remaining
        assert (left.op, left.place) == ("CumSum", "body of Scan of `h`")
        around = [why for why in left.why if why.root]
        assert [why.rule for why in around] == ["FuseRecurrence"]
        assert around[0].passed > 0
        assert "CumSum is neither an affine operator nor an activation" in around[0].reason
        own = {why.rule for why in left.why if not why.root}
        assert {"FoldConstants", "EliminateDeadNode"} <= own
        assert "FuseRecurrence at Scan of `h`" in shown(found)

    def test_one_that_went(self) -> None:
        text = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(x) y = Add(a, b) }"
        found = explain(Request.of(model(text)), node="b")
        assert found.remaining == []
        assert list(found.removed.values()) == ["EliminateCommonSubexpression at commit 1"]
        assert "`b` is removed" in shown(found)
        assert "removed: Neg of `b` (EliminateCommonSubexpression at commit 1)" in shown(found)

    def test_a_name_that_is_nearly_one(self) -> None:
        text = "g (float[2] x) => (float[2] result) { inner = Neg(x) result = Exp(inner) }"
        with pytest.raises(AssumptionError, match=r"no node 'iner'.*such as inner"):
            explain(Request.of(model(text)), node="iner")


class TestRulesThatRaise:
    """The rule, the line and the message; the other rules still give their reasons."""

    def test_match(self) -> None:
        class Fails(Rule[Node]):
            """Looks up a key that does not exist."""

            root = "If"

            def match(self, m: Match) -> Node:
                return self.found({})

            def found(self, table: dict[str, Node]) -> Node:
                return table["gone"]

        phases = (Phase("bad", (Fails,), ""), Phase("good", (InlineDecidedIf,), ""))
        found = explain(Request.of(model(), phases=phases), node="y")
        reasons = {why.rule: why.reason for why in found.remaining[0].why}
        line = Fails.found.__code__.co_firstlineno + 1
        raised = f"match raised KeyError: 'gone' at {__file__}:{line}"
        assert reasons["Fails"] == raised
        assert reasons["InlineDecidedIf"].startswith("the condition `c`")
        assert found.defects == [f"Fails at If of `y`: {raised}"]
        assert f"defect: Fails at If of `y`: {raised}" in shown(found)

    def test_apply(self) -> None:
        class Fails(Rule[Node]):
            """Divides by zero."""

            root = "If"

            def match(self, m: Match) -> Node:
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                raise ZeroDivisionError("no luck")

        found = explain(Request.of(model(), phases=(Phase("bad", (Fails,), ""),)), node="y")
        line = Fails.apply.__code__.co_firstlineno + 1
        assert (
            found.remaining[0]
            .why[0]
            .reason.endswith(f"apply raised ZeroDivisionError: no luck at {__file__}:{line}")
        )

    def test_match_that_gives_nothing(self) -> None:
        class Forgets(Rule[None]):
            """Returns nothing."""

            root = "If"

            def match(self, m: Match) -> None:
                return None

        found = explain(Request.of(model(), phases=(Phase("bad", (Forgets,), ""),)), node="y")
        assert "match returned None" in found.remaining[0].why[0].reason

    def test_a_reason_with_braces(self) -> None:
        class Braces(Rule[Node]):
            """Its reason has more places than values."""

            root = "If"

            def match(self, m: Match) -> Node:
                m.need(False, "the set {} is {} {x}", 1)
                return m.node

        found = explain(Request.of(model(), phases=(Phase("bad", (Braces,), ""),)), node="y")
        assert found.remaining[0].why[0].reason == "the set {} is {} {x}"

    def test_one_that_cannot_be_made(self) -> None:
        class Needs(Rule):
            """Takes an argument."""

            root = "If"

            def __init__(self, number: int) -> None:
                self.number = number

        with pytest.raises(LoopliftError, match="The rule Needs cannot be made"):
            explain(Request.of(model(), phases=(Phase("bad", (Needs,), ""),)))

    def test_what_the_opset_lacks(self) -> None:
        """A rule that matches but cannot express its result gives a reason, too."""

        class Late(Rule[Node]):
            """Declines in `apply`."""

            root = "If"

            def match(self, m: Match) -> Node:
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                raise Miss("before opset {} there is no such operator", 99, at=found)

        found = explain(Request.of(model(), phases=(Phase("late", (Late,), ""),)), node="y")
        assert found.remaining[0].why[0].reason == "before opset 99 there is no such operator"


class TestEffects:
    def test_what_removes_control_flow(self) -> None:
        assert effect_of(InlineDecidedIf).removes
        assert effect_of(InlineSingleTripLoop).removes
        assert not effect_of(EliminateDeadCarriedValues).removes

    def test_checks_that_hold(self) -> None:
        assert effect_of(InlineDecidedIf).checks == 1

    def test_a_rule_without_an_example(self) -> None:
        class Silent(Rule):
            """Has no fixture."""

        assert effect_of(Silent).removes


class TestRecipes:
    def test_each_is_for_a_reason_that_a_rule_gives(self) -> None:
        rules = (FuseRecurrence, InlineDecidedIf, SequenceInsertToScanOutput, VectorizeAfterLoop)
        reasons = [sentence.text for rule in rules for sentence in sentences(rule)]
        reasons.append(UNKNOWN_MASK)
        for each in RECIPES:
            stem = each.words.removeprefix("If is ").removeprefix("the cell depends on")
            assert any(stem in reason for reason in reasons), each.words

    @pytest.mark.parametrize("framework", ["PyTorch", "TensorFlow", "JAX", ""])
    def test_they_speak_of_one_framework(self, framework: str) -> None:
        others = {"torch.", "tf.", "jnp."} - {
            {"PyTorch": "torch.", "TensorFlow": "tf.", "JAX": "jnp."}.get(framework)
        }
        for each in RECIPES:
            text = each.text(framework)
            assert not any(re.search(rf"\b{re.escape(name)}", text) for name in others), text

    def test_what_decides_chooses_one(self) -> None:
        assert "torch.where" in recipe(
            "the condition `c` is not known before the run", (), "PyTorch"
        )
        unknown = "the condition `c` is not known before the run"
        assert "before the export" in recipe(unknown, ["--input mode=…"], "PyTorch")
        assert "choice by size" in recipe(unknown, ["--dim T=…"], "PyTorch")
        assert recipe("there is no such reason", (), "") == ""

    @pytest.mark.parametrize(
        ("condition", "branch", "words"),
        [
            ("on = And(more, more)", "q = Neg(x)", "can be unrolled"),
            ("on = Identity(more)", "q = Neg(x)", "can be unrolled"),
            ("on = Identity(go)", "e = Neg(x) q = SequenceInsert(l, e)", "append in every"),
            ("on = Identity(go)", "q = Neg(x)", "compute both results"),
        ],
    )
    def test_an_if_in_a_loop_that_ends_it_or_appends(
        self, condition: str, branch: str, words: str
    ) -> None:
        appends = "SequenceInsert" in branch
        fails = "f = Gather(x, i) p = Add(x, f)"
        kind, other = ("seq(float[2])", "p = Identity(l)") if appends else ("float[2]", fails)
        text = f"""g (int64 n, bool yes, float[2] x0) => (float[2] y, float[N] z) {{
            empty = SequenceEmpty()
            y, s = Loop(n, yes, x0, empty) <body = b (int64 i, bool go, float[2] x, seq(float[2]) l)
                => (bool on, float[2] xo, seq(float[2]) lo) {{
                total = ReduceSum<keepdims = 0>(x)
                big = Cast<to = 9>(total)
                more, r = If(big) <then_branch = t () => (bool a, {kind} p) {{ a = Not(go) {other} }},
                    else_branch = o () => (bool b, {kind} q) {{ b = Identity(go) {branch} }}>
                {condition}
                xo = Sin(x)
                lo = {"Identity(r)" if appends else "SequenceInsert(l, r)"} }}>
            z = ConcatFromSequence<axis = 0>(s) }}"""
        given = model(text)
        given.producer_name = "pytorch"
        (left,) = (each for each in explain(Request.of(given)).remaining if each.op == "If")
        assert words in left.recipe

    def test_the_exporter(self) -> None:
        names = ("pytorch", "tf2onnx", "jax2onnx", "somebody")
        assert [*map(framework_of, names)] == ["PyTorch", "TensorFlow", "JAX", ""]

    def test_every_node_of_the_corpus_has_one(self, corpus: Path) -> None:
        for path in sorted(corpus.glob("*.onnx"))[::6]:
            for left in explain(Request.of(path), tries=False).remaining:
                assert left.recipe, f"{path.name}: {left.node}: {left.why[0].reason}"
                assert left.cost


class TestManyModels:
    def test_the_commonest(self) -> None:
        found = [(Path(name), explain(Request.of(model()))) for name in ("a", "b")]
        reasons = most_common_reasons(found)
        assert sum(each.nodes for each in reasons) == 4
        assert {each.models for each in reasons} == {2}
        console = Console(width=200)
        with console.capture() as captured:
            for part in render_summary(reasons, "title"):
                console.print(part)
        title, head, first, *_ = captured.get().splitlines()
        assert title == "title"
        assert head.split() == ["nodes", "models", "rule", "reason"]
        assert reasons[0].rule in first
        assert len(render_summary([], "title")) == 1

    def test_every_node_of_the_corpus_has_a_reason(self, corpus: Path) -> None:
        for path in sorted(corpus.glob("*.onnx"))[2::6]:
            for left in explain(Request.of(path)).remaining:
                assert left.why, f"{path.name}: {left.node}"
                first = left.why[0]
                assert first.reason, f"{path.name}: {left.node}"
                assert "{}" not in first.reason
                assert first.at, f"{path.name}: {left.node}"
                assert first.value, f"{path.name}: {left.node}"

    @pytest.mark.soak
    def test_every_advice_for_the_corpus_works(self, corpus: Path) -> None:
        """`rewrite` with the recommended option leaves less control flow, or another operator."""
        tried = 0
        for path in sorted(corpus.glob("*.onnx")):
            for left in explain(Request.of(path)).remaining:
                before = count_control_flow(rewrite(path).model)
                for trial in left.trials:
                    option, text = shlex.split(trial.option)
                    kind = option.removeprefix("--").replace("-", " ")
                    asserted = parse_assumptions([f"{kind} {text}"])
                    after = count_control_flow(
                        rewrite_request(Request.of(path).asserting(asserted)).model
                    )
                    case = f"{path.name}: {trial.option}: {before} -> {after}"
                    assert after.total() < before.total() or not trial.removes, case
                    assert after != before, case
                    tried += 1
        assert tried >= 10

    def test_a_published_model(self, models_dir: Path) -> None:
        given = Request.of(models_dir / "silero_vad.onnx")
        (left,) = explain(given).remaining
        assert left.why[0].rule == "InlineDecidedIf"
        assert left.why[0].remedies == ["--input sr=…"]
        assert left.trials[0].option == "--input sr=16000"
        assert (
            explain(
                given.asserting(parse_assumptions(["input sr=16000", "shape input=1,576"]))
            ).remaining
            == []
        )
