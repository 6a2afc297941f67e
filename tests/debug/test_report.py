from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

from looplift import Match, Phase, Rule
from looplift.cli import app
from looplift.debug import verify_commits
from looplift.debug.replay import Replay
from looplift.debug.report.build import ReportData, build
from looplift.debug.report.graph_history import GraphHistory
from looplift.debug.report.numeric import Runs
from looplift.debug.report.page import render, write
from looplift.debug.report.story import (
    BOOKKEEPING,
    bars,
    bookkeeping,
    rules_in_order,
    stories,
)
from looplift.debug.trace_reader import trace_of
from looplift.plugins import all_phases, insert_phases
from looplift.request import Request
from looplift.rewrite.errors import ModelError
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.index import Index
from looplift.rewrite.graph.ir import Node
from looplift.rules import PHASES

from ..full_disk import full_disk
from . import report_models, swapped_gates
from .test_verify_commits import crash_below

Nodes = Counter[tuple[str, str, tuple[str, ...], tuple[str, ...], str, str]]


def nodes_of_index(index: Index) -> Nodes:
    """Operator, name, operands, results and the place of each node."""
    found: Nodes = Counter()
    for node in index.walk():
        graph = index.graph_of(node)
        owner = index.owner(graph)
        attribute = (
            ""
            if owner is None
            else next(name for name, value in owner.attrs.items() if value is graph)
        )
        inputs, outputs = (tuple(t.name for t in side) for side in (node.inputs, node.outputs))
        place = "" if owner is None else owner.outputs[0].name
        found[node.op, node.name or "", inputs, outputs, place, attribute] += 1
    return found


def at(versions: list[list[Any]], commit: int) -> list[Any] | None:
    return next((version for version in reversed(versions) if version[0] <= commit), None)


def nodes_of_history(history: dict[str, Any], commit: int) -> Nodes:
    """The same, read from the data as the page does."""

    def name(value: int) -> str:
        if value < 0:
            return ""
        version = at(history["values"][value], commit)
        assert version is not None
        return str(version[1])

    def record(number: int) -> Any:
        version = at(history["nodes"][number], commit)
        return None if version is None or version[1] < 0 else history["records"][version[1]]

    found: Nodes = Counter()
    for number in range(len(history["nodes"])):
        held = record(number)
        if held is None:
            continue
        op, label, _, graph, inputs, outputs = held
        about = history["graphs"][graph]
        attribute = at(about["attribute"], commit)
        owner = record(about["owner"]) if about["owner"] >= 0 else None
        assert attribute is not None
        place = "" if owner is None else name(owner[5][0])
        read, made = (tuple(map(name, side)) for side in (inputs, outputs))
        found[history["texts"][op], label, read, made, place, attribute[1]] += 1
    return found


def assert_history_is_true(model: onnx.ModelProto | Path) -> None:
    request = Request.of(model)
    trace = trace_of(request)
    replay = Replay.of(request, trace)
    history = GraphHistory(replay)
    expected = [nodes_of_index(replay.engine.index)]
    for commit in trace.commits:
        replay.advance()
        history.advance(commit)
        expected.append(nodes_of_index(replay.engine.index))
    content = json.loads(json.dumps(history.as_json()))
    for number, nodes in enumerate(expected):
        read = nodes_of_history(content, number)
        if read != nodes:  # pytest would take minutes to compare two large counts
            pytest.fail(f"commit {number}: {list(read - nodes)[:2]} for {list(nodes - read)[:2]}")


@pytest.mark.parametrize("model", [report_models.model(), report_models.hostile()])
def test_the_history_has_each_graph(model: onnx.ModelProto) -> None:
    assert_history_is_true(model)


@pytest.mark.parametrize("first", [9, pytest.param(0, marks=pytest.mark.soak)])
def test_the_history_of_models_of_many_exporters(corpus: Path, first: int) -> None:
    for path in sorted(corpus.glob("*.onnx"))[first::18]:
        assert_history_is_true(path)


def test_the_history_keeps_each_form_once() -> None:
    model = report_models.chain(400)
    request = Request.of(model)
    trace = trace_of(request)
    replay = Replay.of(request, trace)
    history = GraphHistory(replay)
    for commit in trace.commits:
        replay.advance()
        history.advance(commit)
    content = history.as_json()
    assert len(trace.commits) >= 100
    versions = sum(len(each) for each in content["nodes"])
    assert versions <= 402 + 3 * len(trace.commits)
    assert len(content["values"]) <= 2 * 402


# --- what the page holds ---


class Tags(HTMLParser):
    """The elements of a page, and the texts of those that have an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.data = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._inside = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data


def report(model: onnx.ModelProto, runs: Runs = Runs.NONE, **given: Any) -> ReportData:
    return build(Request.of(model, **given), "model", runs=runs)


def test_names_stay_text() -> None:
    page = render(report(report_models.hostile()))
    parsed = Tags(page)
    assert parsed.tags["img"] == 0
    history = json.loads(parsed.data)["history"]
    assert report_models.HOSTILE in {
        version[1] for versions in history["values"] for version in versions
    }


def test_the_page_asks_for_nothing_from_outside() -> None:
    page = render(report(report_models.model()))
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert "default-src 'none'" in page


def test_what_remains_and_what_fired() -> None:
    found = report(report_models.model())
    assert [left["op"] for left in found.remaining] == ["If", "Loop"]
    assert all(left["why"] for left in found.remaining)
    fired = {commit["rule"] for commit in found.commits}
    hits = {rule.name: rule.hits for rule in found.rules}
    assert fired == {name for name, times in hits.items() if times}
    assert sum(hits.values()) == len(found.commits)
    sources = {source.name: source.html for source in found.sources}
    assert fired <= set(sources)
    assert all('<span class="nf">match</span>' in html for html in sources.values())
    assert found.status == 0


def test_remaining_nodes_have_their_numbers() -> None:
    found = report(report_models.model())
    for left in found.remaining:
        version = at(found.history["nodes"][left["number"]], len(found.commits))
        assert version is not None
        assert found.history["texts"][found.history["records"][version[1]][0]] == left["op"]


def test_each_commit_is_checked_if_that_is_cheap() -> None:
    found = report(report_models.model(), Runs.IF_CHEAP)
    states = {found.start.state, found.result.state, *(c["check"]["state"] for c in found.commits)}
    assert states == {"equal"}
    assert "runs" in found.runs


def test_runs_in_which_a_version_crashes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = report_models.model(
        "g (float[N] x) => (float[N] y) { a = Abs(x) b = Abs(a) y = Sin(b) }"
    )
    crash_below(1, monkeypatch)
    found = report(model, Runs.ALL)
    assert "equal to the original in 9 runs with N=1|" in found.result.text
    assert "one run is left out: onnxruntime crashes" in found.result.text
    assert "at N=0, not for the original" in found.summary()
    crash_below(100, monkeypatch)
    assert report(model, Runs.ALL).result.state == "unchecked"


def test_rules_of_users_count() -> None:
    """A rule of a user next to one of looplift's is explained, counted and shown like the others."""

    class NegToSub(Rule[Node]):
        """Never fires."""

        root = ("If", "Neg")
        before = "IfToWhere"

        def match(self, m: Match) -> Node:
            return m.need(None, "it declines everything")

    phases = insert_phases(PHASES, (Phase("mine", (NegToSub,), "Mine."),))
    found = report(report_models.model(), phases=phases)
    (mine,) = [rule for rule in found.rules if rule.name == "NegToSub"]
    assert mine.phases == ["branches"]
    assert mine.attempts > 0
    assert mine.reasons[0][0] == "it declines everything"
    (remaining,) = [each for each in found.remaining if each["op"] == "If"]
    reasons = {why["rule"]: why["reason"] for why in remaining["why"]}
    assert reasons["NegToSub"] == "it declines everything"
    assert "NegToSub" in {source.name for source in found.sources}


def test_nothing_is_run_without_a_request() -> None:
    found = report(report_models.model())
    assert {commit["check"]["state"] for commit in found.commits} == {"unchecked"}
    assert "no check was requested" in found.result.text


def test_a_commit_that_changes_what_is_computed() -> None:
    phases = (*all_phases(), *swapped_gates.PHASES)
    found = report(swapped_gates.large_model(120), Runs.ALL, phases=phases)
    states = [commit["check"]["state"] for commit in found.commits]
    bad = states.index("different")
    assert found.commits[bad]["rule"] == "SplitDirections"
    assert set(states[:bad]) <= {"equal"}
    assert set(states[bad + 1 :]) <= {"unchecked"}
    assert found.bad is not None
    assert found.bad.tensor in found.commits[bad]["check"]["text"]
    assert (found.result.state, found.status) == ("different", 1)


@pytest.mark.parametrize("wrong", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_large_model_runs_as_a_whole_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """In between, the nodes that a commit touches tell whether it changes anything."""
    model = swapped_gates.large_model(120)
    phases = (*all_phases(), *(swapped_gates.PHASES if wrong else ()))
    whole = report(model, Runs.ALL, phases=phases)
    monkeypatch.setattr(verify_commits, "LARGE", 1)
    found = report(model, Runs.ALL, phases=phases)
    assert [c["check"]["state"] for c in found.commits] == [
        c["check"]["state"] for c in whole.commits
    ]
    assert found.bad == whole.bad
    texts = [c["check"]["text"] for c in found.commits]
    assert any("only the nodes that the commit touched" in text for text in texts)
    assert (found.result.state, found.status) == (whole.result.state, whole.status)


def test_a_model_onnxruntime_does_not_take() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N] x) => (float[N] y) { a = Identity(x) y = own.Op(a) }"""
    found = build(Request.of(onnx.parser.parse_model(text)), "model", runs=Runs.ALL)
    assert found.result.state == "unchecked"
    assert "own:Op" in found.result.text
    assert found.status == 0


def test_a_model_without_commits() -> None:
    found = report(report_models.model("g (float[N] x) => (float[N] y) { y = Relu(x) }"))
    page = render(found)
    assert found.commits == []
    assert "No If, Loop or Scan remains" in page


def test_assertions_are_shown_as_options() -> None:
    given = Assertions({"rate": 16000}, minima={"N": 1}, shapes={"x": ("N",)})
    found = report(report_models.model(), assertions=given, strict=True)
    options = ["--input rate=16000", '--dim "N>=1"', "--shape x=N", "--strict"]
    assert found.assertions == options
    assert "--dim &#34;N&gt;=1&#34;" in render(found)


def test_the_file_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        write(report(report_models.model()), tmp_path)


def test_a_full_disk_keeps_the_old_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with full_disk(10_000), pytest.raises(ModelError, match=r"too large .*page\.html.* space left"):
        write(report(report_models.model()), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# --- the command ---


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    path = tmp_path / "demo.onnx"
    onnx.save(report_models.model(), path)
    return path


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_device_is_not_replaced(demo: Path) -> None:
    status, printed = call(demo, "-o", "/dev/null")
    assert status == 2
    assert "device or pipe" in printed
    assert not Path("/dev/null").is_file()


def test_the_command(demo: Path) -> None:
    page = demo.with_suffix(".html")
    status, output = call(demo, "-o", page, "--no-verify")
    assert status == 0
    assert f"written: {page}" in output
    assert "remaining: If of `y`, Loop of `last`" in output
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_as_json(demo: Path) -> None:
    page = demo.with_suffix(".html")
    status, output = call(demo, "-o", page, "--json", "--verify", "--input", "rate=16000")
    content = json.loads(output)
    assert (status, content["status"], content["bad_commit"]) == (0, 0, None)
    assert content["remaining"] == ["Loop of `last`"]
    assert content["result"]["state"] == "equal"


@pytest.mark.parametrize(
    "arguments",
    [("no.onnx", "-o", "a.html"), ("{demo}", "-o", "no/such/a.html"), ("{demo}", "-o", "{demo}")],
)
def test_wrong_calls(demo: Path, arguments: tuple[str, ...]) -> None:
    status, output = call(*(argument.format(demo=demo) for argument in arguments))
    assert status == 2
    assert "looplift: " in output


def lines_of(path: Path) -> Iterator[str]:
    yield from path.read_text().splitlines()


def test_the_libraries_are_those_that_are_named() -> None:
    """The version in the page is the one in the file of the library."""
    from looplift.debug.report.page import LIBRARIES

    folder = Path(__file__).parents[2] / "debug" / "report" / "assets"
    for library in LIBRARIES:
        assert library.version in (folder / library.file).read_text()
        assert any("Copyright" in line for line in lines_of(folder / library.licence))
        assert f"| `{library.name}` | {library.version} |" in (folder / "README.md").read_text()


class TestStory:
    """What the page opens with."""

    def test_what_became_of_each_node(self) -> None:
        found = report(report_models.model(), Runs.IF_CHEAP)
        found_stories = stories(found.explanation, found.commits)
        assert [each.node for each in found_stories if each.remains] == [
            each["node"] for each in found.remaining
        ]
        for each in found_stories:
            assert each.remains == bool(each.reason)
            numbers = [number for number, _ in each.commits]
            assert numbers == sorted(numbers)
            assert all(found.commits[n - 1]["rule"] == rule for n, rule in each.commits)
            if not each.remains:
                assert each.fate == f"removed by {each.commits[-1][1]}"

    def test_every_commit_is_in_one_line(self) -> None:
        found = report(report_models.model())
        rules = {rule: times for rule, _, times in rules_in_order(found.commits)}
        tidy = dict(part.rsplit(" ", 1) for part in bookkeeping(found.commits).split(", "))
        total = sum(rules.values()) + sum(map(int, tidy.values()))
        assert total == len(found.commits)
        assert set(tidy) <= BOOKKEEPING
        assert not set(rules) & BOOKKEEPING

    def test_bars_have_one_colour_for_each_operator(self) -> None:
        before, after = bars(Counter(Add=3, If=1, Mul=2), Counter(Add=1, Exp=1))
        assert (before.total, after.total) == (6, 2)
        colours = {op: hue for op, _, hue in before.parts}
        assert sum(count for _, count, _ in before.parts) == 6
        assert all(colours.get(op, hue) == hue for op, _, hue in after.parts)

    def test_bars_name_control_flow_and_recurrences_however_few(self) -> None:
        others = Counter({f"Op{number}": 5 for number in range(20)})
        before, after = bars(others + Counter(Loop=1), Counter(LSTM=1, Op3=1))
        assert before.parts[0][:2] == ("Loop", 1)
        assert [op for op, _, _ in after.parts] == ["LSTM", "Op3"]
        assert len({hue for _, _, hue in before.parts[:-1]}) == len(before.parts) - 1

    def test_the_latency_of_both(self) -> None:
        found = report(report_models.model(), Runs.IF_CHEAP)
        assert found.latency is not None
        assert min(found.latency) > 0
        assert report(report_models.model()).latency is None
