"""Builds a report: rewrites a model, and follows the rewrite commit by commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from ...request import Request
from ...rewrite.storage.summary import CONTROL_FLOW, count_operators
from ..command_options import settings_options
from ..commit_diff import CommitDiff, advance
from ..exit_status import FINDING
from ..explain.explain import Explanation, explain
from ..reference_runs import ReferenceRuns
from ..replay import Replay
from ..trace_reader import trace_of
from ..verify_commits import BadCommit
from .graph_history import GraphHistory
from .numeric import NumericCheck, NumericChecks, Runs
from .rule_sources import RuleSource, RuleTotals, rule_source, totals

_MOST_NODES = 5
"""The remaining nodes in the summary."""
Progress = Callable[[int, int], None]
"""Is called with the number of the commit and of all commits."""


@dataclass
class ReportData:
    """Everything that a report shows."""

    name: str
    explanation: Explanation
    commits: list[dict[str, Any]]
    """The commits of the trace, each with the lines of its nodes and the numeric check."""
    remaining: list[dict[str, Any]]
    """The remaining control flow, with the numbers of the nodes in the trace."""
    rules: list[RuleTotals]
    sources: list[RuleSource]
    """The sources of the rules that fired, and of those that say why control flow remains."""
    defects: list[str]
    """Rules that raised an error, or whose patch failed its check."""
    history: dict[str, Any]
    before: Counter[str]
    after: Counter[str]
    assertions: list[str]
    """As options of the command line."""
    runs: str
    """What the model was run with; empty if it was not run."""
    start: NumericCheck
    result: NumericCheck
    bad: BadCommit | None
    seconds: float
    """The time of the rewrite, including the trace."""
    latency: tuple[float, float] | None = None
    """The median seconds of a run on onnxruntime before and after, if the model was run."""

    @property
    def status(self) -> int:
        """The exit status: a finding if an output differs or a rule is defective."""
        different = "different" in (self.start.state, self.result.state)
        return FINDING if different or self.bad or self.defects else 0

    def as_json(self) -> dict[str, Any]:
        """A summary for programs."""
        return {
            "model": self.name,
            "commits": len(self.commits),
            "remaining": [each["node"] for each in self.remaining],
            "result": self.result.as_json(),
            "bad_commit": self.bad.number if self.bad is not None else None,
            "defects": self.defects,
            "status": self.status,
        }

    def summary(self) -> str:
        """One line for the terminal."""
        nodes = ", ".join(each["node"] for each in self.remaining[:_MOST_NODES])
        more = len(self.remaining) - _MOST_NODES
        remaining = f"remaining: {nodes or 'none'}{f' and {more} more' if more > 0 else ''}"
        wrong = f"; commit {self.bad.number} is wrong" if self.bad is not None else ""
        commits = f"{len(self.commits)} commit{'s' * (len(self.commits) != 1)}"
        return f"{commits}; {remaining}; result {self.result.text}{wrong}"


def build(
    request: Request,
    name: str,
    *,
    runs: Runs = Runs.IF_CHEAP,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReportData:
    """Rewrites a model and follows the rewrite commit by commit. Raises what `rewrite` raises."""
    trace = trace_of(request, in_full=True)
    replay = Replay.of(request, trace)
    with ExitStack() as stack:
        reference = None
        if runs is not Runs.NONE:
            reference = stack.enter_context(ReferenceRuns(request, seed))
        checks = NumericChecks(lambda: Replay.of(request, trace), reference, runs, progress)
        history = GraphHistory(replay)
        commits = _follow(replay, history, checks, progress)
        replay.finish()
        assert trace.result is not None, "trace_of sets it"
        finished = trace.result
        result = checks.of_result(finished)
        latency = checks.latency(finished)
    explanation = explain(request)
    remaining = _with_numbers(explanation, replay)
    return ReportData(
        name=name,
        explanation=explanation,
        commits=commits,
        remaining=remaining,
        rules=totals(trace, request.phases),
        sources=_sources(request, commits, remaining),
        defects=trace.defect_texts,
        history=history.as_json(),
        before=count_operators(request.proto),
        after=count_operators(finished),
        assertions=settings_options(trace.settings),
        runs=checks.runs,
        start=checks.start,
        result=result,
        bad=checks.bad,
        seconds=float(trace.end["seconds"]),
        latency=latency,
    )


def _follow(
    replay: Replay, history: GraphHistory, checks: NumericChecks, progress: Progress | None
) -> list[dict[str, Any]]:
    """Replays all commits; returns what the page shows of each."""
    commits = []
    for commit in replay.commits:
        if progress is not None:
            progress(commit.number, len(replay.commits))
        diff = advance(replay)
        history.advance(commit)
        commits.append(_content(diff, checks.after(commit.number)))
    return commits


def _content(diff: CommitDiff, check: NumericCheck) -> dict[str, Any]:
    commit = diff.commit
    return {
        "rule": commit.rule,
        "phase": commit.phase,
        "root": commit.root,
        "node": commit.node,
        "place": commit.place,
        "lines": [[line.mark, line.node, line.place, line.text] for line in diff.lines],
        "edits": commit.edits,
        "notes": commit.notes,
        "bindings": diff.bindings,
        "facts": commit.facts,
        "touched": commit.touched,
        "removed": commit.removed,
        "added": commit.added,
        "ms": round(commit.seconds * 1000, 3),
        "check": check.as_json(),
    }


def _sources(
    request: Request, commits: list[dict[str, Any]], remaining: list[dict[str, Any]]
) -> list[RuleSource]:
    shown = {commit["rule"] for commit in commits}
    shown |= {why["rule"] for each in remaining for why in each["why"]}
    rules = dict.fromkeys(rule for phase in request.phases for rule in phase.rules)
    return [rule_source(rule) for rule in rules if rule.name() in shown]


def _with_numbers(explanation: Explanation, replay: Replay) -> list[dict[str, Any]]:
    """The remaining nodes with their numbers in the finished replay of the same rewrite.

    Rewriting is deterministic: both have the same nodes in the same order.
    """
    index = replay.engine.index
    numbers = [
        replay.numbers[node]
        for graph in index.graphs(replay.engine.model.graph)
        for node in graph.nodes
        if node.op in CONTROL_FLOW and not node.domain and node in index
    ]
    remaining = [asdict(each) for each in explanation.remaining]
    return [{**each, "number": number} for each, number in zip(remaining, numbers)]
