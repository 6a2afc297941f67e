"""Runs a model three ways and compares: the original and the rewritten file on onnxruntime, the
Relax module on TVM. Same inputs; outputs, operators and latencies side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..api import RewriteResult, rewrite_request
from ..request import Request, Settings
from ..rewrite.facts.assertions import Assertions
from ..rewrite.running.branches import BranchRecorder, RecordingSession, with_outputs
from ..rewrite.running.cases import Case, Cases, limited_effort
from ..rewrite.running.child_process import ChildProcess
from ..rewrite.running.compare import Tolerances, working_precision
from ..rewrite.running.nondeterminism import unsorted_outputs
from ..rewrite.running.remarks import (
    ENDED_EARLY,
    no_case_reason,
    refusal_notes,
    timeout_note,
    unstable_note,
)
from ..rewrite.running.runtime import (
    ExecutionError,
    Feed,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
    TimedExecutable,
)
from ..rewrite.running.signature import CannotGenerateInputs
from ..rewrite.running.verify import Candidate, counts_enough
from ..rewrite.storage.files import ModelSource
from ..rewrite.storage.summary import rows
from ..rewrite.storage.validate import check_runtime
from .exit_status import ERROR, FINDING
from .relax import RelaxSession

ORIGINAL, REWRITTEN, RELAX = "original", "rewritten", "Relax"
EQUAL, DIFFERENT, CRASHED, UNSTABLE = "equal", "different", "crashed", "unstable"
_WORST_FIRST = (DIFFERENT, CRASHED, UNSTABLE, EQUAL)
CASES = 7
"""The number of inputs on which the columns are compared."""
LATENCY_SECONDS = 0.1


@dataclass
class Column:
    """One way to run the model."""

    name: str
    runtime: str
    operators: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    """Why it does not run at all."""

    @property
    def is_counted(self) -> bool:
        """Whether the operators are known: of a model that is not imported they are not."""
        return bool(self.operators) and not self.problem


@dataclass
class RunComparison:
    """The results for one set of inputs."""

    sizes: dict[str, int]
    """The sizes of the open dimensions, by name."""
    scalars: dict[str, Any] = field(default_factory=dict)
    """The random inputs that are scalars."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """By column: `equal`, `different`, `crashed` (the run of an empty input), or `unstable`
    (rounding errors change the original by a similar amount)."""
    distances: dict[str, float] = field(default_factory=dict)
    """By column: the largest absolute difference to the original."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By column: the median latency."""
    differences: list[str] = field(default_factory=list)
    unstable: dict[str, list[str]] = field(default_factory=dict)
    """By column: the outputs that rounding errors change by a similar amount in the original."""

    def label(self) -> str:
        """`T=2, B=3, mode=1`."""
        values = {**self.sizes, **self.scalars}
        return ", ".join(f"{name}={value}" for name, value in values.items()) or "run"


@dataclass
class CheckResult:
    """The result of the three-way check."""

    columns: list[Column]
    runs: list[RunComparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    """Why nothing ran, if nothing did."""
    refused: dict[str, str] = field(default_factory=dict)
    """The sizes asked for at which the original does not run, with its error."""

    @property
    def status(self) -> int:
        """The exit status: a finding if an output differs, an error if a column does not run."""
        if any(DIFFERENT in run.verdicts.values() for run in self.runs):
            return FINDING
        failed = self.reason or any(column.problem for column in self.columns)
        return ERROR if failed or any(map(self._shows_nothing, self.columns[1:])) else 0

    def _shows_nothing(self, column: Column) -> bool:
        """Whether every run of a column crashed or is inconclusive because of rounding errors."""
        found = [(r.sizes, r.verdicts.get(column.name)) for r in self.runs]
        unstable = [sizes for sizes, verdict in found if verdict == UNSTABLE]
        equal = [sizes for sizes, verdict in found if verdict == EQUAL]
        return not equal or not counts_enough(equal, unstable)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def check(
    source: ModelSource,
    settings: Settings,
    *,
    sizes: Mapping[str, Sequence[int]] | None = None,
    with_tvm: bool = True,
    with_latency: bool = True,
    seed: int = 0,
    seconds: float | None = None,
) -> CheckResult:
    """Rewrites a model, runs it in all three ways at several sizes, and compares.

    `sizes` are the sizes to try for some open dimensions; no run starts after `seconds`, by default
    120. A column that does not run gets its problem, and the others are compared. Raises what
    `rewrite` raises.
    """
    request = settings.request(source)
    result = rewrite_request(request)
    check_runtime(result.proto)
    checked = CheckResult(_columns(result, with_tvm), notes=list(result.report.notes))
    proto, folder = request.proto, request.base_dir
    assertions = result.engine.assertions
    effort = replace(limited_effort(seconds), cases=CASES)
    with ExitStack() as stack:
        try:
            original = stack.enter_context(closing(IsolatedSession(SerializedModel(proto, folder))))
            cases = Cases(
                proto,
                original,
                base_dir=folder,
                assertions=assertions,
                choices=sizes,
                seed=seed,
                effort=effort,
            )
        except ExecutionError as error:
            problem = str(error).rstrip(".")
            checked.reason = (
                f"onnxruntime {onnxruntime.__version__} does not run the original, with which the "
                f"other columns are compared: {problem}. If the model is meant for another version "
                "or runtime, `looplift rewrite --no-verify` rewrites it all the same"
            )
            return checked
        except CannotGenerateInputs as error:
            checked.reason = str(error)
            return checked
        others = _sessions(checked, result, source, settings, stack)
        tolerances = Tolerances(working_precision(proto))
        sides = {
            name: Candidate.of(proto, original, other, tolerances, folder)
            for name, other in others.items()
        }
        if RELAX in sides and (unsorted := unsorted_outputs(proto)):
            sides[RELAX] = replace(sides[RELAX], random=[*sides[RELAX].random, *unsorted])
            named = ", ".join(f"`{name}`" for name in unsorted)
            checked.notes.append(
                f"only types and shapes of {named} were compared between onnxruntime and TVM: TopK "
                "need not sort them"
            )
        feeds = []
        for case in cases:
            feeds.append(case.feed)
            run = _compared(case, sides, assertions.inputs, effort.run_seconds)
            if with_latency:
                _measure(run, case, {ORIGINAL: original, **others})
            checked.runs.append(run)
        checked.notes += _branch_notes(request, assertions, feeds)
        if cases.ended_early and checked.runs:
            checked.notes.append(ENDED_EARLY)
        if cases.timeouts and checked.runs:
            checked.notes.append(timeout_note(cases.timeouts))
        checked.refused = cases.refused_choices()
        checked.reason = "" if checked.runs else no_case_reason(cases)
    return checked


def _columns(result: RewriteResult, with_tvm: bool) -> list[Column]:
    report = result.report
    columns = [
        Column(ORIGINAL, "onnxruntime", dict(report.before)),
        Column(REWRITTEN, "onnxruntime", dict(report.after)),
    ]
    return [*columns, Column(RELAX, "TVM")] if with_tvm else columns


def _sessions(
    checked: CheckResult,
    result: RewriteResult,
    source: ModelSource,
    settings: Settings,
    stack: ExitStack,
) -> dict[str, TimedExecutable]:
    """The columns that are compared with the original; records the problem of one that fails."""
    packed = SerializedModel(result.proto, result.base_dir)
    sessions: dict[str, TimedExecutable] = {}
    for column in checked.columns[1:]:
        try:
            if column.name == REWRITTEN:
                sessions[column.name] = stack.enter_context(closing(IsolatedSession(packed)))
            else:
                process = stack.enter_context(ChildProcess())
                relax = RelaxSession(source, settings, process)
                column.operators = relax.operators
                sessions[column.name] = relax
        except ExecutionError as refusal:
            column.problem = str(refusal)
    return sessions


def _compared(
    case: Case, sides: Mapping[str, Candidate], given: Mapping[str, Any], seconds: float
) -> RunComparison:
    random = {name: value for name, value in case.feed.items() if name not in given}
    run = RunComparison(dict(case.sizes), _scalars(random))
    for name, side in sides.items():
        try:
            judgement = side.compare_run(case, seconds)
        except ProcessCrashed:
            run.verdicts[name] = CRASHED
            continue
        same = UNSTABLE if judgement.unstable else EQUAL
        run.verdicts[name] = DIFFERENT if judgement.differences else same
        run.distances[name] = judgement.distance
        if judgement.unstable:
            run.unstable[name] = list(judgement.unstable)
        run.differences += [f"{name}: {difference}" for difference in judgement.differences]
    return run


def _scalars(feed: Feed) -> dict[str, Any]:
    scalars = {n: v for n, v in feed.items() if isinstance(v, np.ndarray) and v.ndim == 0}
    return {name: value.item() for name, value in scalars.items()}


def _measure(run: RunComparison, case: Case, runners: Mapping[str, TimedExecutable]) -> None:
    for name, runner in runners.items():
        if run.verdicts.get(name, EQUAL) == EQUAL:
            run.seconds[name] = runner.latency(case.feed, LATENCY_SECONDS)


# --- for the terminal ---


def render(checked: CheckResult, title: str) -> list[RenderableType]:
    """A table with a column for each way to run the model, then problems and the verdict."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in checked.columns:
        table.add_column(f"{column.name}\n{column.runtime}", justify="right")
    for name, counts in rows([column.operators for column in checked.columns]):
        cells = zip(checked.columns, counts)
        table.add_row(name, *(str(count) if c.is_counted else "-" for c, count in cells))
    groups: dict[str, list[RunComparison]] = {}
    for run in checked.runs:
        groups.setdefault(run.label(), []).append(run)
    for label, runs in groups.items():
        times = f" ({len(runs)} runs)" if len(runs) > 1 else ""
        table.add_row(label + times, *(_cell(runs, column) for column in checked.columns))
    if len(groups) > 1 and any(run.seconds for run in checked.runs):
        speed = (_speed_text(checked.runs, column) for column in checked.columns)
        table.add_row(Text("median", style="bold"), *speed)
    refused = refusal_notes(checked.refused)
    problems = [f"{c.name} does not run: {c.problem}" for c in checked.columns if c.problem]
    problems += [difference for run in checked.runs for difference in run.differences]
    lines = (Text(line, style="red") for line in problems)
    skipped = (Text(line, style="yellow") for line in [*refused, *_unstable_notes(checked)])
    return [Text(title, style="bold"), table, *skipped, *lines, _verdict(checked)]


def _unstable_notes(checked: CheckResult) -> list[str]:
    sizes: dict[tuple[str, str], list[dict[str, int]]] = {}
    for run in checked.runs:
        for column, names in run.unstable.items():
            for name in names:
                sizes.setdefault((column, name), []).append(run.sizes)
    return [f"{column}: {unstable_note(name, s)}" for (column, name), s in sizes.items()]


def _cell(runs: Sequence[RunComparison], column: Column) -> Text:
    """Runs at the same sizes: median latency, its ratio to the original, and the worst verdict."""
    if column.problem:
        return Text("-")
    text = Text()
    seconds = [run.seconds[column.name] for run in runs if column.name in run.seconds]
    if seconds:
        text.append(f"{median(seconds) * 1e3:.3f} ms  ")
    text.append_text(_speed_text(runs, column))
    verdicts = {run.verdicts.get(column.name) for run in runs}
    worst = next((each for each in _WORST_FIRST if each in verdicts), None)
    if worst == EQUAL:
        distance = max(run.distances[column.name] for run in runs)
        text.append("  equal" if not distance else f"  equal within {distance:.0e}", "green")
    elif worst is not None:
        text.append(f"  {worst}", "red" if worst == DIFFERENT else "yellow")
    return text


def _speed_text(runs: Sequence[RunComparison], column: Column) -> Text:
    """How many times as fast as the original a column is, in the median: `2.9x`."""
    ratios = [
        run.seconds[ORIGINAL] / run.seconds[column.name]
        for run in runs
        if column.name != ORIGINAL and {ORIGINAL, column.name} <= run.seconds.keys()
    ]
    if not ratios:
        return Text()
    ratio = median(ratios)
    return Text(f"{ratio:.1f}x", style="green" if ratio > 1 else "yellow")


def _branch_notes(request: Request, asserted: Assertions, feeds: Sequence[Feed]) -> list[str]:
    """A note on each If that took the same branch in every run."""
    proto, folder = request.proto, request.base_dir
    branches = BranchRecorder.of(proto, folder, asserted)
    if not branches.conditions:
        return []
    recorded = with_outputs(proto, branches.conditions.values())
    try:
        with closing(IsolatedSession(SerializedModel(recorded, folder))) as session:
            recording = RecordingSession(session, branches, len(proto.graph.output))
            for feed in feeds:
                recording.run(feed)
    except ExecutionError:  # onnxruntime may not infer the type of a condition
        return []
    return branches.notes()


def _verdict(checked: CheckResult) -> Text:
    if checked.reason:
        return Text(f"nothing was compared: {checked.reason}", style="red")
    verdicts = Text("; ").join(_verdict_on(column, checked.runs) for column in checked.columns[1:])
    return Text("against the original, ").append(verdicts)


def _verdict_on(column: Column, runs: Sequence[RunComparison]) -> Text:
    """One column in words; a run that crashed or is unstable does not count as equal."""
    if column.problem:
        return Text(f"{column.name}: did not run", style="yellow")
    counts = Counter(run.verdicts[column.name] for run in runs)
    if counts[EQUAL] == len(runs):
        where = f"all {len(runs)} runs" if len(runs) > 1 else "1 run"
        return Text(f"{column.name}: equal in {where}", style="green")
    parts = [f"{each} in {counts[each]}" for each in _WORST_FIRST if counts[each]]
    style = "red" if counts[DIFFERENT] else "yellow"
    return Text(f"{column.name}: {', '.join(parts)} of {len(runs)} runs", style=style)
