from __future__ import annotations

import functools
import io
import json
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import parser

from looplift import LoopliftError, ModelError, Phase, Rule
from looplift.api import rewrite_request
from looplift.debug.replay import Replay
from looplift.debug.snapshot import snapshot
from looplift.debug.trace_reader import RecordedTrace, read_trace, trace_of
from looplift.debug.trace_writer import TraceWriter, match_line, trace_file
from looplift.request import Request, Settings
from looplift.rewrite.engine.engine import Observer
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match
from looplift.rewrite.engine.trace import Commit
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Graph, Node, Tensor
from looplift.rules.branches.decided_if import InlineDecidedIf

from ..full_disk import full_disk

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


@dataclass(frozen=True)
class Operand:
    """The operand of a Neg, with more of what a match may find."""

    operand: Tensor
    body: Graph
    times: int


class ForwardNeg(Rule[Operand]):
    """Removes a Neg, which changes what is computed."""

    root = "Neg"

    def match(self, m: Match) -> Operand:
        return Operand(m.node.inputs[0], m.graph(), 2)

    def apply(self, patch: Patch, found: Operand) -> None:
        patch.replace(patch.root.outputs[0], found.operand)
        patch.remove(patch.root)


def request_for(text: str = LOOP, **inputs: object) -> Request:
    return Request.of(model(text), Assertions(inputs=inputs))


def rewritten(given: Request, step_limit: int | None = None) -> onnx.ModelProto:
    return rewrite_request(given, step_limit=step_limit).proto


def same(left: onnx.ModelProto, right: onnx.ModelProto) -> bool:
    return bool(
        left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)
    )


class TestLines:
    def test_the_first_and_the_last(self) -> None:
        lines = io.StringIO()
        given = Settings(Assertions({"c": True}, minima={"N": 2}), rules=("mine",))
        with TraceWriter(lines, given, source="m.onnx") as writer:
            request_for().engine(writer).run()
        first, *_, last = map(json.loads, lines.getvalue().splitlines())
        assert (first["kind"], first["format"], first["source"]) == ("model", 4, "m.onnx")
        assert first["rules"] == ["mine"]
        assert first["inputs"] == {"c": {"dtype": "bool", "values": True}}
        assert first["nodes"] == 10
        assert [phase["name"] for phase in first["phases"]][:2] == [
            "contrib operators",
            "constants",
        ]
        assert last["kind"] == "end"
        assert last["commits"] == sum(last["hits"].values()) > 0
        assert last["error"] == ""

    def test_a_commit(self) -> None:
        trace = trace_of(request_for(c=True))
        (commit,) = (c for c in trace.commits if c.rule == "InlineDecidedIf")
        assert commit.phase == "branches"
        assert (commit.file, commit.line) == match_line(InlineDecidedIf)
        assert Path(commit.file).name == "decided_if.py"
        assert commit.node == "If of `y`"
        assert commit.place == ""
        assert any(edit.startswith("inlined body `t`") for edit in commit.edits)
        assert commit.root in commit.removed
        assert commit.seconds > 0

    def test_what_a_match_found(self) -> None:
        given = Request.of(model(), phases=(Phase("wrong", (ForwardNeg,), "Wrong."),))
        trace = trace_of(given, in_full=True)
        (commit,) = trace.commits
        kind, found = commit.found
        assert (kind, found["body"][0], found["times"]) == ("fields", "body", 2)
        assert found["operand"][0] == "output"
        assert commit.bindings == {"operand": "`w`", "body": "body `e`", "times": 2}
        replay = Replay.of(given, trace)
        replay.advance()
        assert replay.bindings == commit.bindings

    def test_numbers_tell_what_is_there(self) -> None:
        """Touched nodes that are not removed are there; removed ones are not."""
        given = request_for(c=True)
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
        trace = trace_of(request_for(), in_full=True)
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

    def test_attempts_are_left_out_by_default(self) -> None:
        trace = trace_of(request_for())
        assert trace.attempts == []
        assert {commit.before for commit in trace.commits} == {""}

    def test_a_defect(self) -> None:
        class Loses(Rule[Node]):
            """Removes what is read."""

            root = "Neg"

            def match(self, m: Match) -> Node:
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                patch.remove(found)

        trace = trace_of(Request.of(model(), phases=(Phase("bad", (Loses,), ""),)))
        (defect,) = trace.defects
        assert (defect["rule"], defect["node"]) == ("Loses", "Neg of `b`")
        assert "still read" in defect["reason"]


class TestReplay:
    @pytest.mark.parametrize("in_full", [False, True])
    def test_the_same_model(self, in_full: bool) -> None:
        for inputs in ({}, {"c": True}, {"c": False}, {"m": 3}, {"c": True, "m": 1}):
            given = request_for(**inputs)
            trace = trace_of(given, in_full)
            assert same(Replay.of(given, trace).finish(), rewritten(given))

    def test_the_model_after_each_commit(self) -> None:
        given = request_for(c=True)
        replay = Replay.of(given, trace_of(given))
        for number in range(len(replay.commits) + 1):
            replay.go_to(number)
            assert same(replay.model(), rewritten(given, step_limit=number))

    def test_nothing_is_matched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = request_for(c=True)
        trace = trace_of(given)
        tried: list[str] = []

        def match(self: Rule, m: Match) -> object:
            tried.append(type(self).__name__)
            raise AssertionError

        for commit in trace.commits:
            if commit.found is not None:
                (rule,) = {r for p in given.phases for r in p.rules if r.name() == commit.rule}
                monkeypatch.setattr(rule, "match", functools.wraps(rule.match)(match))
        Replay.of(given, trace).finish()
        assert tried == []

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        given = request_for(c=True)
        with path.open("w") as file, TraceWriter(file, Settings(given.assertions)) as writer:
            given.engine(writer).run()
        trace = read_trace(path)
        assert trace.settings.assertions.inputs["c"]
        again = Request.of(model(), trace.settings.assertions)
        assert same(Replay.of(again, trace).finish(), rewritten(given))

    def test_another_model(self) -> None:
        trace = trace_of(request_for())
        other = request_for(LOOP.replace("Neg", "Abs"))
        with pytest.raises(LoopliftError, match="another model"):
            Replay.of(other, trace)

    def test_other_rules(self) -> None:
        given = request_for(c=True)
        trace = trace_of(given)
        fewer = Request.of(model(), given.assertions, phases=given.phases[:2])
        with pytest.raises(LoopliftError, match="no rule InlineDecidedIf in a phase branches"):
            Replay.of(fewer, trace).finish()

    def test_a_rule_that_does_something_else_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = request_for(c=True)
        trace = trace_of(given)

        def takes_the_other(self: Rule, patch: Patch, found: object) -> None:
            patch.swap_branches(patch.root)

        monkeypatch.setattr(InlineDecidedIf, "apply", takes_the_other)
        with pytest.raises(LoopliftError, match="edits differ from those of the trace"):
            Replay.of(given, trace).finish()

    @pytest.mark.parametrize("first", [0, pytest.param(12, marks=pytest.mark.soak)])
    def test_models_of_all_kinds(self, corpus: Path, models_dir: Path, first: int) -> None:
        published = [] if first else sorted(models_dir.glob("*.onnx"))
        for path in [*sorted(corpus.glob("*.onnx"))[first::24], *published]:
            given = Request.of(path)
            trace = trace_of(given, in_full=True)
            assert same(Replay.of(given, trace).finish(), rewritten(given)), path.name


class TestFiles:
    def test_what_is_no_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        for text in ("", "no json", "[1]", '{"kind":"model","format":99}', '{"a":1}\n'):
            path.write_text(text)
            with pytest.raises(ModelError, match="not a trace of looplift"):
                read_trace(path)
        with pytest.raises(ModelError, match="cannot be read"):
            read_trace(tmp_path / "none.jsonl")

    def test_a_trace_that_was_cut_off(self) -> None:
        lines = io.StringIO()
        writer = TraceWriter(lines)
        request_for().engine(writer).run()
        trace = RecordedTrace({})
        for line in lines.getvalue().splitlines():
            assert json.loads(line)["kind"] != "end"
        assert trace.end == {}

    @pytest.mark.parametrize("lines", [1, 1000], ids=["at its end", "at once"])
    def test_a_trace_that_does_not_fit_leaves_the_old_one(self, lines: int, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text('{"kind":"model"}')
        with (
            full_disk(100),
            pytest.raises(ModelError, match=r"File too large .*t\.jsonl"),
            trace_file(path) as file,
        ):
            file.writelines([f"{'line' * 100}\n"] * lines)
        texts = [(each.name, each.read_text()) for each in tmp_path.iterdir()]
        assert texts == [("t.jsonl", '{"kind":"model"}')]

    def test_an_error_is_recorded(self) -> None:
        lines = io.StringIO()
        writer = TraceWriter(lines)
        request_for().engine(writer).run()
        writer.__exit__(ValueError, ValueError("by hand"), None)
        assert json.loads(lines.getvalue().splitlines()[-1])["error"] == "by hand"


class _Looks(Observer):
    """Takes a snapshot in the middle of everything."""

    def begins(self, engine: object) -> None:
        self.engine = engine

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        snapshot(self.engine)  # type: ignore[arg-type]


def test_snapshots_do_not_disturb() -> None:
    given = request_for(c=True)
    engine = given.engine(_Looks())
    engine.run()
    assert same(snapshot(engine), rewritten(given))
