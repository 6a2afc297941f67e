"""Puts a report together: one rewrite with everything known of it, made anew and followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ...api import count_operators
from ...commands.arguments import mask_option
from ..explaining.explain import FINDING, Explanation, explain
from ..regions import advance
from ..replay import Replay
from ..subject import Subject
from ..trace_file import TraceFile, trace_of
from ..trials import Trials
from ..verify_steps import BadStep
from .history import History
from .numeric import Checks, Verdict, Wanted
from .rule_sources import RuleTotals, Source, source, totals
from .why_not import left_json

_MOST_LEFT = 5
Progress = Callable[[int, int], None]
"""Told the step and the number of steps."""


@dataclass
class ReportData:
    """Everything a report shows."""

    name: str
    explanation: Explanation
    steps: list[dict[str, Any]]
    """A commit of the trace each, with the lines of its region and the numeric verdict."""
    left: list[dict[str, Any]]
    rules: list[RuleTotals]
    sources: list[Source]
    """Of the rules that fired, and of those that say why something is left."""
    defects: list[str]
    """Rules whose patch was wrong and undone."""
    history: dict[str, Any]
    before: Counter[str]
    after: Counter[str]
    assertions: list[str]
    runs: str
    """What the model was run with; empty if it was not."""
    start: Verdict
    result: Verdict
    bad: BadStep | None
    seconds: float
    """How long the rewrite took, tracing included."""

    @property
    def status(self) -> int:
        """The exit status: 1 where something was computed that differs, or a rule was wrong."""
        different = "different" in (self.start.state, self.result.state)
        return FINDING if different or self.bad or self.defects else 0

    def as_json(self) -> dict[str, Any]:
        """A summary for programs."""
        return {
            "model": self.name,
            "steps": len(self.steps),
            "left": [left["node"] for left in self.left],
            "result": self.result.as_json(),
            "bad_step": self.bad.step if self.bad is not None else None,
            "defects": self.defects,
            "status": self.status,
        }

    def verdict(self) -> str:
        """One line for the terminal."""
        left = ", ".join(each["node"] for each in self.left[:_MOST_LEFT])
        more = len(self.left) - _MOST_LEFT
        remaining = (
            f"left: {left}{f' and {more} more' if more > 0 else ''}" if left else "none left"
        )
        wrong = f"; step {self.bad.step} is wrong" if self.bad is not None else ""
        return f"{len(self.steps)} steps, {remaining}; result {self.result.text}{wrong}"


def build(
    subject: Subject,
    name: str,
    *,
    wanted: Wanted = Wanted.IF_CHEAP,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReportData:
    """Rewrites a model and follows the rewrite step by step. Raises what `rewrite` raises."""
    trace = trace_of(subject, in_full=True)
    replay = Replay.of(subject, trace)
    with ExitStack() as stack:
        trials = None
        if wanted is not Wanted.NONE:
            trials = stack.enter_context(Trials(subject, seed))
        checks = Checks(replay, trials, wanted)
        history = History(replay)
        steps = _follow(replay, history, checks, progress)
        finished = replay.finish()
        result = checks.of_result(finished)
        runs = checks.runs
    explanation = explain(subject)
    left = left_json(explanation, replay)
    return ReportData(
        name=name,
        explanation=explanation,
        steps=steps,
        left=left,
        rules=totals(trace, tuple(subject.phases)),
        sources=_sources(subject, steps, left),
        defects=trace.undone,
        history=history.as_json(),
        before=count_operators(subject.proto),
        after=count_operators(finished),
        assertions=_asserted(trace),
        runs=runs,
        start=checks.start,
        result=result,
        bad=checks.bad,
        seconds=float(trace.end["seconds"]),
    )


def _follow(
    replay: Replay, history: History, checks: Checks, progress: Progress | None
) -> list[dict[str, Any]]:
    """Makes all commits again; one entry for each."""
    steps = []
    for commit in replay.commits:
        if progress is not None:
            progress(commit.step, len(replay.commits))
        step = advance(replay)
        history.advance(commit)
        lines = [[line.mark, line.number, line.place, line.text] for line in step.lines]
        steps.append(
            {
                "rule": commit.rule,
                "phase": commit.phase,
                "node": commit.node,
                "number": commit.number,
                "place": commit.place,
                "lines": lines,
                "edits": commit.edits,
                "notes": commit.notes,
                "bindings": commit.bindings,
                "facts": commit.facts,
                "touched": commit.touched,
                "removed": commit.removed,
                "added": commit.added,
                "ms": round(commit.seconds * 1000, 3),
                "check": checks.after(commit).as_json(),
            }
        )
    return steps


def _sources(
    subject: Subject, steps: list[dict[str, Any]], left: list[dict[str, Any]]
) -> list[Source]:
    told = {step["rule"] for step in steps}
    told |= {why["rule"] for each in left for why in each["why"]}
    rules = dict.fromkeys(rule for phase in subject.phases for rule in phase.rules)
    return [source(rule) for rule in rules if rule.name() in told]


def _asserted(trace: TraceFile) -> list[str]:
    """The assertions as options of the command line."""
    about = trace.about
    inputs = [f"--input {name}={given['values']}" for name, given in about["inputs"].items()]
    shapes = [
        f"--shape {name}={','.join('?' if d is None else str(d) for d in shape)}"
        for name, shape in about["shapes"].items()
    ]
    dims = [f"--dim {dim}" for dim in about["dims"]]
    masks = [mask_option(name, axis) for name, axis in about["prefix_masks"].items()]
    return [*inputs, *dims, *shapes, *masks, *(["--strict"] if about["strict"] else [])]
