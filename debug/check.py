"""One model three ways: the original and the rewritten file on onnxruntime, the Relax module on
TVM. Same inputs, outputs compared, operators and latencies side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..api import RewriteResult, rewrite
from ..commands.arguments import Assertions
from ..rewrite.engine.rule import Phase
from ..rewrite.running.cases import Case, Cases, Effort
from ..rewrite.running.child_process import ChildProcess
from ..rewrite.running.compare import Tolerances, working_precision
from ..rewrite.running.nondeterminism import random_outputs, recurrent_outputs
from ..rewrite.running.runtime import (
    ExecutionError,
    Feed,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
    TimedExecutable,
)
from ..rewrite.running.signature import CannotGenerateInputs
from ..rewrite.running.verify import Candidate, no_case_reason
from ..rewrite.storage.files import load
from ..rewrite.storage.validate import check_runtime
from .counts import rows
from .relax import RelaxSession

ORIGINAL, REWRITTEN, RELAX = "original", "rewritten", "Relax"
EQUAL, DIFFERENT, ENDED = "equal", "different", "ended"
FINDING, WRONG = 1, 2
EFFORT = Effort(cases=6)
LATENCY_SECONDS = 0.1


@dataclass
class Column:
    """One way to run the model."""

    name: str
    runtime: str
    operators: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    """Why it does not run at all."""


@dataclass
class Run:
    """What came of one set of inputs."""

    sizes: dict[str, int]
    """Of the open dimensions, by name."""
    scalars: dict[str, Any] = field(default_factory=dict)
    """Made-up inputs that are scalars."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """By column: `equal`, `different`, or `ended` (an empty input ended the process)."""
    distances: dict[str, float] = field(default_factory=dict)
    """By column: the largest absolute difference to the original."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By column: the median latency."""
    differences: list[str] = field(default_factory=list)

    def label(self) -> str:
        """`T=2, B=3, mode=1`."""
        told = {**self.sizes, **self.scalars}
        return ", ".join(f"{name}={value}" for name, value in told.items()) or "run"


@dataclass
class Check:
    """The result of the three-way check."""

    columns: list[Column]
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    """Why nothing ran, if nothing did."""

    @property
    def status(self) -> int:
        """The exit status: 1 if an output differs, 2 if a side does not run at all."""
        if any(DIFFERENT in run.verdicts.values() for run in self.runs):
            return FINDING
        return WRONG if self.reason or any(column.problem for column in self.columns) else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def check(
    model: str | Path,
    assertions: Assertions | None = None,
    *,
    choices: Mapping[str, Sequence[int]] | None = None,
    with_tvm: bool = True,
    with_latency: bool = True,
    seed: int = 0,
    rules: Sequence[Phase] | None = None,
) -> Check:
    """Rewrite a model, run it in all three ways at several sizes, and compare.

    `choices` gives the sizes to try for some open dimensions. A side that does not run is said to
    have a problem, and the others are compared. Raises what `rewrite` raises.
    """
    assertions = assertions or Assertions()
    result = rewrite(
        model,
        inputs=assertions.inputs,
        dims=assertions.dims,
        shapes=assertions.shapes,
        prefix_masks=assertions.prefix_masks,
        strict=assertions.strict,
        rules=rules,
    )
    check_runtime(result.model)
    found = Check(_columns(result, with_tvm), notes=list(result.report.notes))
    proto, folder = load(model)
    with ExitStack() as stack:
        try:
            original = stack.enter_context(closing(IsolatedSession(SerializedModel(proto, folder))))
            cases = Cases(
                proto,
                original,
                base_dir=folder,
                inputs=assertions.inputs,
                assumptions=result.engine.assumptions,
                choices=choices,
                seed=seed,
                effort=EFFORT,
            )
        except (ExecutionError, CannotGenerateInputs) as error:
            found.reason = str(error)
            return found
        others = _others(found, result, stack)
        tolerances = Tolerances(working_precision(proto))
        random = random_outputs(proto)
        empty = recurrent_outputs(proto)
        sides = {
            n: Candidate(r, original.outputs, random, tolerances, empty) for n, r in others.items()
        }
        for case in cases:
            run = _judge(case, sides, assertions)
            if with_latency:
                _measure(run, case, {ORIGINAL: original, **others})
            found.runs.append(run)
        found.reason = "" if found.runs else no_case_reason(cases)
    return found


def _columns(result: RewriteResult, with_tvm: bool) -> list[Column]:
    report = result.report
    columns = [
        Column(ORIGINAL, "onnxruntime", dict(report.before)),
        Column(REWRITTEN, "onnxruntime", dict(report.after)),
    ]
    return [*columns, Column(RELAX, "TVM")] if with_tvm else columns


def _others(found: Check, result: RewriteResult, stack: ExitStack) -> dict[str, TimedExecutable]:
    """What is held against the original; a side that cannot be made gets its problem noted."""
    packed = SerializedModel(result.model, result.base_dir)
    others: dict[str, TimedExecutable] = {}
    for column in found.columns[1:]:
        try:
            if column.name == REWRITTEN:
                session = stack.enter_context(closing(IsolatedSession(packed)))
                others[column.name] = session
            else:
                relax = RelaxSession(packed, stack.enter_context(ChildProcess()))
                column.operators = relax.operators
                others[column.name] = relax
        except ExecutionError as refusal:
            column.problem = str(refusal)
    return others


def _judge(case: Case, sides: Mapping[str, Candidate], assertions: Assertions) -> Run:
    made_up = {n: v for n, v in case.feed.items() if n not in assertions.inputs}
    run = Run(dict(case.sizes), _scalars(made_up))
    for name, side in sides.items():
        try:
            judgement = side.compare_run(case, EFFORT.run_seconds)
        except ProcessCrashed:
            run.verdicts[name] = ENDED
            continue
        run.verdicts[name] = DIFFERENT if judgement.differences else EQUAL
        run.distances[name] = judgement.distance
        run.differences += [f"{name}: {difference}" for difference in judgement.differences]
    return run


def _scalars(feed: Feed) -> dict[str, Any]:
    single = {n: v for n, v in feed.items() if isinstance(v, np.ndarray) and v.ndim == 0}
    return {name: value.item() for name, value in single.items()}


def _measure(run: Run, case: Case, runners: Mapping[str, TimedExecutable]) -> None:
    for name, runner in runners.items():
        if run.verdicts.get(name, EQUAL) == EQUAL:
            run.seconds[name] = runner.latency(case.feed, LATENCY_SECONDS)


# --- for the terminal ---


def render(found: Check, title: str) -> list[RenderableType]:
    """A table with a column for each side, and what there is to say besides."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in found.columns:
        table.add_column(f"{column.name}\n{column.runtime}", justify="right")
    for name, counts in rows([column.operators for column in found.columns]):
        cells = zip(found.columns, counts)
        table.add_row(name, *("-" if column.problem else str(count) for column, count in cells))
    for run in found.runs:
        table.add_row(run.label(), *(_cell(run, column) for column in found.columns))
    problems = [f"{c.name} does not run: {c.problem}" for c in found.columns if c.problem]
    problems += [difference for run in found.runs for difference in run.differences]
    lines = (Text(line, style="red") for line in problems)
    return [Text(title, style="bold"), table, *lines, _verdict(found)]


def _cell(run: Run, column: Column) -> Text:
    if column.problem:
        return Text("-")
    text = Text()
    if column.name in run.seconds:
        text.append(f"{run.seconds[column.name] * 1e3:.3f} ms")
    verdict = run.verdicts.get(column.name)
    if verdict == EQUAL:
        distance = run.distances[column.name]
        text.append("  equal" if not distance else f"  ±{distance:.0e}", "green")
    elif verdict is not None:
        text.append(f"  {verdict}", "red" if verdict == DIFFERENT else "yellow")
    return text


def _verdict(found: Check) -> Text:
    if found.reason:
        return Text(f"nothing was compared: {found.reason}", style="red")
    compared = Text("; ").join(_verdict_on(column, found.runs) for column in found.columns[1:])
    return Text("against the original, ").append(compared)


def _verdict_on(column: Column, runs: Sequence[Run]) -> Text:
    """One side in words. A run that ended its process is no difference, yet was not compared."""
    if column.problem:
        return Text(f"{column.name}: did not run", style="yellow")
    counts = Counter(run.verdicts[column.name] for run in runs)
    if counts[EQUAL] == len(runs):
        return Text(f"{column.name}: equal in all {len(runs)} runs", style="green")
    told = [f"{each} in {counts[each]}" for each in (DIFFERENT, ENDED, EQUAL) if counts[each]]
    style = "red" if counts[DIFFERENT] else "yellow"
    return Text(f"{column.name}: {', '.join(told)} of {len(runs)} runs", style=style)
