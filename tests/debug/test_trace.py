from __future__ import annotations

import io
import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

import looplift
from looplift import LoopliftError, ModelError, Phase, Rule
from looplift.commands.arguments import Assertions
from looplift.debug.recording import Recorder, source_of
from looplift.debug.replay import Replay
from looplift.debug.snapshot import snapshot
from looplift.debug.subject import Subject
from looplift.debug.trace_file import TraceFile, read_trace, trace_of
from looplift.rewrite.engine.engine import Observer
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match
from looplift.rewrite.engine.trace import Commit
from looplift.rewrite.graph.ir import Node
from looplift.rules.branches.decided_if import InlineDecidedIf

LOOP = """g (float[2] x, int64 m, bool c) => (float[2] y) <int64 two = {2}, int64 three = {3}> {
    far = Add(two, three)
    near = Identity(x)
    y = If (c) <
        then_branch = t () => (float[2] a) {
            a = Loop (m, , near) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] n) {
                on = Identity(go)
                k = Cast<to = 1>(far)
                h = Identity(s)
                n = Add(h, k)
            }>
        },
        else_branch = e () => (float[2] b) { w = Identity(near) b = Neg(w) }
    >
}"""


def model(text: str = LOOP) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def subject(text: str = LOOP, **inputs: object) -> Subject:
    return Subject.of(model(text), Assertions(inputs=inputs))


def rewritten(given: Subject, step_limit: int | None = None) -> onnx.ModelProto:
    result = looplift.rewrite(
        given.proto,
        inputs=given.assertions.inputs,
        dims=given.assertions.dims,
        shapes=given.assertions.shapes,
        rules=given.phases,
        step_limit=step_limit,
    )
    return result.model


def same(left: onnx.ModelProto, right: onnx.ModelProto) -> bool:
    return bool(
        left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)
    )


class TestLines:
    def test_the_first_and_the_last(self) -> None:
        lines = io.StringIO()
        given = Assertions({"c": True}, ("N>=2",), {})
        with Recorder(lines, source="m.onnx", assertions=given, rules=["mine"]) as recorder:
            subject().engine(recorder).run()
        first, *_, last = map(json.loads, lines.getvalue().splitlines())
        assert (first["kind"], first["format"], first["source"]) == ("model", 3, "m.onnx")
        assert first["rules"] == ["mine"]
        assert first["inputs"] == {"c": {"dtype": "bool", "values": True}}
        assert first["nodes"] == 10
        assert [phase["name"] for phase in first["phases"]][:2] == ["constants", "branches"]
        assert last["kind"] == "end"
        assert last["steps"] == sum(last["hits"].values()) > 0
        assert last["error"] == ""

    def test_a_commit(self) -> None:
        trace = trace_of(subject(c=True))
        (commit,) = (c for c in trace.commits if c.rule == "InlineDecidedIf")
        assert commit.phase == "branches"
        assert (commit.file, commit.line) == source_of(InlineDecidedIf)
        assert Path(commit.file).name == "decided.py"
        assert commit.node == "If of `y`"
        assert commit.place == ""
        assert any(edit.startswith("inlined body `t`") for edit in commit.edits)
        assert commit.found == {
            "node": ["node", commit.number],
            "branch": ["body", commit.number, 0],
        }
        assert commit.number in commit.removed
        assert commit.seconds > 0

    def test_numbers_tell_what_is_there(self) -> None:
        """Touched nodes that are not removed are there; removed ones are not."""
        given = subject(c=True)
        trace = trace_of(given)
        replay = Replay.of(given, trace)
        seen = len(replay.numbers)
        for commit in trace.commits:
            replay.advance()
            assert commit.added == list(range(seen, seen + len(commit.added)))
            seen += len(commit.added)
            for number in commit.removed:
                node = replay.numbers.node(number)
                assert node is not None
                assert node not in replay.engine.index

    def test_in_full(self) -> None:
        trace = trace_of(subject(), in_full=True)
        miss = next(
            a for a in trace.attempts if a.rule == "InlineDecidedIf" and a.node == "If of `y`"
        )
        assert miss.reason == "the condition `c` is not known before the run"
        assert miss.at == "`c`"
        assert sum(trace.end["attempts"].values()) >= len(trace.attempts) > 0
        assert set(trace.end["match_seconds"]) <= set(trace.end["attempts"])
        first = trace.commits[0]
        assert first.before == trace.about["hash"] != first.after
        assert trace.commits[-1].after == trace.end["hash"]
        for earlier, later in zip(trace.commits, trace.commits[1:]):
            assert earlier.after == later.before
        folded = next(c for c in trace.commits if c.rule == "FoldConstants")
        assert folded.facts["two"] in ("int64[] = 2", "?[?]")
        assert folded.bindings["node"] == "Add of `far`"

    def test_attempts_are_left_out_by_default(self) -> None:
        trace = trace_of(subject())
        assert trace.attempts == []
        assert {commit.before for commit in trace.commits} == {""}

    def test_a_defect(self) -> None:
        class Loses(Rule):
            """Removes what is read."""

            root = "Neg"

            def match(self, m: Match) -> dict[str, Node]:
                return {"node": m.node}

            def apply(self, patch: Patch, node: Node) -> None:
                patch.remove(node)

        trace = trace_of(Subject.of(model(), phases=(Phase("bad", (Loses,), ""),)))
        (defect,) = trace.defects
        assert (defect["rule"], defect["node"]) == ("Loses", "Neg of `b`")
        assert "still read" in defect["reason"]


class TestReplay:
    @pytest.mark.parametrize("in_full", [False, True])
    def test_the_same_model(self, in_full: bool) -> None:
        for inputs in ({}, {"c": True}, {"c": False}, {"m": 3}, {"c": True, "m": 1}):
            given = subject(**inputs)
            trace = trace_of(given, in_full)
            assert same(Replay.of(given, trace).finish(), rewritten(given))

    def test_the_model_after_each_step(self) -> None:
        given = subject(c=True)
        replay = Replay.of(given, trace_of(given))
        for step in range(len(replay.commits) + 1):
            replay.go_to(step)
            assert same(replay.model(), rewritten(given, step_limit=step))

    def test_nothing_is_matched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = subject(c=True)
        trace = trace_of(given)
        tried: list[str] = []

        def match(self: Rule, m: Match) -> dict[str, object]:
            tried.append(type(self).__name__)
            raise AssertionError

        for commit in trace.commits:
            if commit.found is not None:
                (rule,) = {r for p in given.phases for r in p.rules if r.name() == commit.rule}
                monkeypatch.setattr(rule, "match", match)
        Replay.of(given, trace).finish()
        assert tried == []

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        given = subject(c=True)
        with path.open("w") as file, Recorder(file, assertions=given.assertions) as recorder:
            given.engine(recorder).run()
        trace = read_trace(path)
        assert trace.assertions.inputs["c"]
        again = Subject.of(model(), trace.assertions)
        assert same(Replay.of(again, trace).finish(), rewritten(given))

    def test_another_model(self) -> None:
        trace = trace_of(subject())
        other = subject(LOOP.replace("Neg", "Abs"))
        with pytest.raises(LoopliftError, match="another model"):
            Replay.of(other, trace)

    def test_other_rules(self) -> None:
        given = subject(c=True)
        trace = trace_of(given)
        fewer = Subject.of(model(), given.assertions, given.phases[:1])
        with pytest.raises(LoopliftError, match="no rule InlineDecidedIf in a phase branches"):
            Replay.of(fewer, trace).finish()

    def test_a_rule_that_does_something_else_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = subject(c=True)
        trace = trace_of(given)

        def takes_the_other(self: Rule, patch: Patch, node: Node, branch: object) -> None:
            patch.swap_branches(node)

        monkeypatch.setattr(InlineDecidedIf, "apply", takes_the_other)
        with pytest.raises(LoopliftError, match="changes something else"):
            Replay.of(given, trace).finish()

    def test_models_of_all_kinds(self, corpus: Path, models_dir: Path) -> None:
        paths = [*sorted(corpus.glob("*.onnx"))[::12], *sorted(models_dir.glob("*.onnx"))]
        for path in paths:
            given = Subject.of(path)
            trace = trace_of(given, in_full=True)
            assert same(Replay.of(given, trace).finish(), rewritten(given)), path.name


class TestFiles:
    def test_what_is_no_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        for text in ("", "no json", "[1]", '{"kind":"model","format":99}', '{"a":1}\n'):
            path.write_text(text)
            with pytest.raises(ModelError, match="no trace of looplift"):
                read_trace(path)
        with pytest.raises(ModelError, match="cannot be read"):
            read_trace(tmp_path / "none.jsonl")

    def test_a_trace_that_was_cut_off(self) -> None:
        lines = io.StringIO()
        recorder = Recorder(lines)
        subject().engine(recorder).run()
        trace = TraceFile({})
        for line in lines.getvalue().splitlines():
            assert json.loads(line)["kind"] != "end"
        assert trace.end == {}

    def test_an_error_is_told(self) -> None:
        lines = io.StringIO()
        recorder = Recorder(lines)
        subject().engine(recorder).run()
        recorder.__exit__(ValueError, ValueError("by hand"), None)
        assert json.loads(lines.getvalue().splitlines()[-1])["error"] == "by hand"


class _Looks(Observer):
    """Takes a snapshot in the middle of everything."""

    def begins(self, engine: object) -> None:
        self.engine = engine

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        snapshot(self.engine)  # type: ignore[arg-type]


def test_snapshots_do_not_disturb() -> None:
    given = subject(c=True)
    engine = given.engine(_Looks())
    engine.run()
    assert same(snapshot(engine), rewritten(given))
