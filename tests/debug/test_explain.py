from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser
from rich.console import Console

from looplift import AssumptionError, Match, Phase, Rule
from looplift.arguments import Assertions
from looplift.debug.effects import effect_of
from looplift.debug.explain import (
    Explanation,
    commonest,
    explain,
    render,
    render_commonest,
    with_assumptions,
)
from looplift.debug.subject import Subject
from looplift.rules.decided_if import InlineDecidedIf
from looplift.rules.loop_none import RunLoopOnce
from looplift.rules.loop_states import DropDeadStates

TEXT = """g (float[N] x, int64 rate, int64 m) => (float[N] y) <int64 fast = {16000}> {
    same = Cast<to = 7>(rate)
    c = Equal(same, fast)
    y = If (c) <
        then_branch = t () => (float[N] p) {
            p = Loop (m, , x) <body = b (int64 i, bool go, float[N] s) => (bool on, float[N] n) {
                on = Identity(go) k = Sin(s) h = Exp(k) n = Tanh(h)
            }>
        },
        else_branch = e () => (float[N] q) { q = Neg(x) }
    >
}"""


def model(text: str = TEXT) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def shown(found: Explanation) -> str:
    console = Console(width=500, no_color=True)
    with console.capture() as captured:
        for part in render(found, "model", everything=True):
            console.print(part)
    return captured.get()


class TestReasons:
    def test_value_place_and_origin(self) -> None:
        found = explain(Subject.of(model()), rule="InlineDecidedIf")
        (left,) = (each for each in found.left if each.op == "If")
        (why,) = left.why
        assert why.reason == "the condition `c` is not known before the run"
        assert why.template == "the condition `{}` is not known before the run"
        assert (why.at, why.value) == ("`c`", "bool[]")
        assert why.passed == 0
        assert why.chain == [
            "`c` = Equal(`rate`, 16000): bool[]",
            "`rate` = input of the model: int64[]",
        ]
        assert why.remedies == ["--input rate=…"]
        text = shown(found)
        assert "say more with --input rate=…" in text
        assert "from `c` = Equal(`rate`, 16000)" in text

    def test_those_that_got_furthest_come_first(self) -> None:
        for left in explain(Subject.of(model())).left:
            telling = [why.passed for why in left.why if why.removes]
            assert telling == sorted(telling, reverse=True)
            removes = [why.removes for why in left.why]
            assert removes == sorted(removes, reverse=True)

    def test_a_body_says_what_changes(self) -> None:
        text = TEXT.replace(
            "on = Identity(go)",
            "one = ReduceMax<keepdims=0>(s) big = Cast<to=7>(one) on = Less(big, m)",
        )
        found = explain(Subject.of(model(text)), node="p")
        chains = [line for left in found.left for why in left.why for line in why.chain]
        assert any("state of Loop" in line for line in chains)

    def test_one_node(self) -> None:
        given = Subject.of(model())
        assert [left.op for left in explain(given, node="p").left] == ["Loop"]
        assert [left.op for left in explain(given, node="y").left] == ["If"]
        with pytest.raises(AssumptionError, match="no If, Loop or Scan 'x'"):
            explain(given, node="x")

    def test_rules_that_are_not_there(self) -> None:
        with pytest.raises(AssumptionError, match="no rule 'Nonsense'"):
            explain(Subject.of(model()), rule="Nonsense")

    def test_a_change_that_was_undone(self) -> None:
        class Loses(Rule):
            """Removes what is read."""

            root = "If"

            def match(self, m: Match) -> dict[str, object]:
                return {"node": m.node}

            def apply(self, patch: object, node: object) -> None:
                patch.remove(node)  # type: ignore[attr-defined]

        found = explain(Subject.of(model(), phases=(Phase("bad", (Loses,), ""),)), node="y")
        (why,) = found.left[0].why
        assert "its change is wrong and was undone" in why.reason

    def test_nothing_is_left(self) -> None:
        found = explain(Subject.of(model(), Assertions({"rate": 8000})))
        assert found.left == []
        assert found.status == 0


class TestWhatIfs:
    def test_what_an_assumption_changes(self) -> None:
        given = Subject.of(model())
        found = explain(given, assume=["input rate=8000"])
        assert found.left == []
        assert "If of `y`" in found.labels.values()
        assert any(how.startswith("InlineDecidedIf at step") for how in found.gone.values())
        assert "assuming input rate=8000" in shown(found)
        assert explain(given).status == 1

    def test_they_add_to_assertions(self) -> None:
        given = with_assumptions(
            Assertions({"a": 1}, ("T=2",), {}), ["input b=2", "dim N>=1", "shape x=1,T"]
        )
        assert given.inputs == {"a": 1, "b": 2}
        assert given.dims == ("T=2", "N>=1")
        assert given.shapes == {"x": (1, "T")}

    @pytest.mark.parametrize("text", ["", "dim", "T=16", "wish luck"])
    def test_those_that_assume_nothing(self, text: str) -> None:
        with pytest.raises(AssumptionError, match="assumes nothing"):
            with_assumptions(Assertions(), [text])


class TestEffects:
    def test_what_removes_control_flow(self) -> None:
        assert effect_of(InlineDecidedIf).removes
        assert effect_of(RunLoopOnce).removes
        assert not effect_of(DropDeadStates).removes

    def test_checks_that_hold(self) -> None:
        assert effect_of(InlineDecidedIf).checks == 1

    def test_a_rule_without_an_example(self) -> None:
        class Silent(Rule):
            """Shows nothing."""

        assert effect_of(Silent).removes


class TestManyModels:
    def test_the_commonest(self) -> None:
        found = [(Path(name), explain(Subject.of(model()))) for name in ("a", "b")]
        reasons = commonest(found)
        assert sum(each.times for each in reasons) == 4
        assert {each.models for each in reasons} == {2}
        console = Console(width=200)
        with console.capture() as captured:
            for part in render_commonest(reasons, "title"):
                console.print(part)
        assert reasons[0].rule in captured.get()

    def test_every_node_of_the_corpus_has_a_reason(self, corpus: Path) -> None:
        for path in sorted(corpus.glob("*.onnx"))[::4]:
            for left in explain(Subject.of(path)).left:
                assert left.why, f"{path.name}: {left.node}"
                first = left.why[0]
                assert first.reason, f"{path.name}: {left.node}"
                assert "{}" not in first.reason
                assert first.at, f"{path.name}: {left.node}"
                assert first.value, f"{path.name}: {left.node}"

    def test_a_published_model(self, models_dir: Path) -> None:
        given = Subject.of(models_dir / "silero_vad.onnx")
        (left,) = explain(given).left
        assert any("`sr`" in line for line in left.why[0].chain)
        assert explain(given, assume=["input sr=16000", "shape input=1,576"]).left == []
