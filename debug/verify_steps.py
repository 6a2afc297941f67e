"""Which step of a rewrite changes what a model computes: onnxruntime after each commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..rewrite.running.compare import Difference
from ..rewrite.running.verify import optimizer_note
from .ahead import ahead
from .forms import Patience
from .replay import Replay
from .subject import Subject
from .trace_file import CommitLine, trace_of
from .trials import Trials

FINDING, WRONG = 1, 2
Progress = Callable[[int, int], None]
"""Told the step and the number of steps."""
_MOST_EDITS = 8


@dataclass
class BadStep:
    """The first step after which a model computes something else."""

    step: int
    """0 for reading and writing the model without any rewrite."""
    phase: str = ""
    rule: str = ""
    file: str = ""
    line: int = 0
    node: str = ""
    place: str = ""
    edits: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """Values that the nodes it touched compute."""
    tensor: str = ""
    """The first value of the main graph that differs, in the order in which they are computed."""
    tensor_difference: str = ""
    output: str = ""
    """The first output of the model that differs."""
    difference: str = ""
    expected: float | None = None
    actual: float | None = None
    max_absolute: float = 0.0
    max_relative: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass
class StepVerification:
    """What came of running a model after each step."""

    steps: int
    checked: int = 0
    """Forms of the model that were run, that before the first step included."""
    cases: int = 0
    sizes: str = ""
    coverage: dict[str, str] = field(default_factory=dict)
    """Trip counts and branches that the cases came upon, for Loops and Ifs of the main graph."""
    bad: BadStep | None = None
    crashes: dict[int, str] = field(default_factory=dict)
    """Steps after which onnxruntime's own optimizer fails, though without it the model computes
    the same: a defect of onnxruntime, not of the step.
    """
    not_optimized: list[int] = field(default_factory=list)
    """Steps that were run without the optimizer alone, because it failed a few steps before."""
    original_crash: str = ""
    """How the optimizer failed over the original: all steps were run without it then."""
    defects: list[str] = field(default_factory=list)
    """Rules whose patch was wrong and undone."""
    reason: str = ""
    """Why nothing was compared, if nothing was."""

    @property
    def status(self) -> int:
        """The exit status."""
        if self.bad is not None or self.steps in self.crashes:
            return FINDING
        return WRONG if self.reason else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def verify_steps(
    subject: Subject, *, seed: int = 0, progress: Progress | None = None
) -> StepVerification:
    """Runs a model on onnxruntime after each commit, always with the same inputs.

    Raises what `rewrite` raises.
    """
    trace = trace_of(subject)
    result = StepVerification(len(trace.commits))
    result.defects = trace.undone
    with Trials(subject, seed) as trials:
        result.cases, result.sizes = len(trials.cases), trials.sizes()
        if not trials.cases:
            result.reason = trials.reason
            return result
        result.original_crash = trials.original_crash
        result.coverage = trials.coverage()
        _walk(result, Replay.of(subject, trace), trials, progress)
    return result


@dataclass(frozen=True)
class _Form:
    """The model as it stands after a commit."""

    line: CommitLine
    touched: list[str]
    model: onnx.ModelProto


def _walk(
    result: StepVerification, replay: Replay, trials: Trials, progress: Progress | None
) -> None:
    before = replay.model()
    found = _judged(result, trials, 0, before, optimizes=True)
    if found:
        result.bad = _described(BadStep(0), found[0], None)
        return
    patience = Patience()
    for form in ahead(_forms(replay)):
        step = form.line.step
        if progress is not None:
            progress(step, result.steps)
        optimizes = patience.tries() or step == result.steps
        found = _judged(result, trials, step, form.model, optimizes)
        if found:
            inner = trials.first_inner(before, form.model)
            result.bad = bad_step(form.line, found[0], inner)
            result.bad.touched = form.touched
            return
        if optimizes:
            patience.learn(failed=step in result.crashes)
        before = form.model


def _forms(replay: Replay) -> Iterator[_Form]:
    for line in replay.commits:
        patch = replay.advance()
        names = (t.name for node in patch.touched for t in node.outputs if t.name)
        yield _Form(line, list(dict.fromkeys(names)), replay.model())


def _judged(
    result: StepVerification, trials: Trials, step: int, model: onnx.ModelProto, optimizes: bool
) -> list[Difference]:
    found = trials.differences(model, optimizes)
    result.checked += 1
    if trials.crash:
        result.crashes[step] = trials.crash
    elif not optimizes:
        result.not_optimized.append(step)
    return found


def bad_step(line: CommitLine, found: Difference, inner: Difference | None) -> BadStep:
    """A commit that changes what the model computes, with the numbers."""
    bad = BadStep(
        line.step, line.phase, line.rule, line.file, line.line, line.node, line.place, line.edits
    )
    return _described(bad, found, inner)


def _described(bad: BadStep, found: Difference, inner: Difference | None) -> BadStep:
    bad.output, bad.difference = found.output, found.what
    bad.max_absolute, bad.max_relative = found.max_absolute, found.max_relative
    bad.expected, bad.actual = _number(found.expected), _number(found.actual)
    bad.sizes = dict(found.sizes)
    first = inner if inner is not None else found
    bad.tensor, bad.tensor_difference = first.output, first.what
    return bad


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


# --- for the terminal ---


def render(result: StepVerification, title: str) -> list[RenderableType]:
    """The verdict, the step it is about, and what was run."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    for node, seen in result.coverage.items():
        parts.append(Text(f"{node}: ran with {seen}", style="dim"))
    parts += [Text(f"undone: {defect}", style="yellow") for defect in result.defects]
    if result.reason:
        return [*parts, Text(f"nothing was compared: {result.reason}", style="red")]
    ran = f"{result.cases} runs" + (f" ({result.sizes})" if result.sizes else "")
    if result.original_crash:
        parts.append(Text(optimizer_note(result.original_crash), style="yellow"))
    if result.crashes:
        parts.append(Text(_told_crashes(result), style="yellow"))
    if result.bad is None:
        return [*parts, Text(f"equal after each of {result.steps} steps, in {ran}", style="green")]
    return [*parts, *render_step(result.bad), Text(f"steps: {result.steps}; {ran}", style="dim")]


def _told_crashes(result: StepVerification) -> str:
    without = [*result.crashes, *result.not_optimized]
    first, last = min(without), max(without)
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    if len(without) <= last - first:
        steps = f"{len(without)} of the {steps}"
    tried = f" at {len(result.crashes)} of them" if result.not_optimized else ""
    text = result.crashes[min(result.crashes)]
    return f"{steps} run with graph optimizations off, which were tried{tried}: {text}"


def render_step(bad: BadStep) -> list[RenderableType]:
    """A bad step: rule, place, numbers, edits."""
    if bad.step == 0:
        return [Text(f"reading and writing the model changes it: {bad.difference}", style="red")]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    place = f" in {bad.place}" if bad.place else ""
    sizes = ", ".join(f"{name}={size}" for name, size in bad.sizes.items())
    rows = [
        ("first bad step", f"{bad.step}: {bad.rule} at {bad.node}{place}"),
        ("rule", f"{bad.file}:{bad.line}"),
        ("first tensor", f"`{bad.tensor}`: {bad.tensor_difference}"),
        ("output", f"`{bad.output}`: {bad.difference}" + (f" (at {sizes})" if sizes else "")),
        ("touched", ", ".join(f"`{name}`" for name in bad.touched[:_MOST_EDITS])),
        *(("", edit) for edit in bad.edits[:_MOST_EDITS]),
    ]
    for name, text in rows:
        table.add_row(name, Text(text))
    return [table]
