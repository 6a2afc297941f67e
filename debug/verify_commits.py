"""Finds the commit that changes what a model computes: runs the model after each commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, TypeVar

import onnx
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..request import Request
from ..rewrite.running.compare import Difference
from ..rewrite.running.remarks import optimizer_note, refusal_notes
from .batch_runner import OptimizerBackoff
from .cut_outs import CutOuts
from .exit_status import ERROR, FINDING
from .reduce.edits import size
from .reference_runs import ReferenceRuns
from .replay import Replay
from .trace_reader import CommitLine, trace_of

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Is called with the number of the commit and of all commits."""
LARGE = 500
"""From this many nodes on, the whole model runs only after every `WHOLE` commits."""
WHOLE = 100
"""The commits between two runs of a whole large model."""
_MOST_EDITS = 8
END = "the end of the rewrite"
"""Stands for a rule if the result differs although the model was equal after each commit."""


@dataclass
class BadCommit:
    """The first commit after which the model computes something else."""

    number: int
    """0 for reading and writing the model without any rewrite."""
    phase: str = ""
    rule: str = ""
    file: str = ""
    line: int = 0
    node: str = ""
    place: str = ""
    edits: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """The values that the touched nodes compute."""
    tensor: str = ""
    """The first value of the main graph that differs, in the order of computation."""
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
class CommitVerification:
    """The result of running a model after each commit."""

    commits: int
    checked: int = 0
    """The versions of the model that were run, including that before the first commit."""
    cut_out: set[int] = field(default_factory=set)
    """The commits of a large model that were checked by running only the nodes that they
    touched."""
    cases: int = 0
    """The runs in which all versions were compared."""
    sizes: str = ""
    left_out: str = ""
    """Why further runs do not count; empty if all do."""
    refused_sizes: dict[str, str] = field(default_factory=dict)
    """The sizes asked for at which the original does not run, with its error."""
    coverage: dict[str, str] = field(default_factory=dict)
    """How many iterations of each Loop of the main graph ran, and which values the condition of
    each If had."""
    branch_notes: list[str] = field(default_factory=list)
    """Remarks on branches that never ran."""
    bad: BadCommit | None = None
    crashes: dict[int, str] = field(default_factory=dict)
    """Commits after which onnxruntime's own optimizer fails, although the model computes the same
    without it: a defect of onnxruntime, not of the commit."""
    not_optimized: set[int] = field(default_factory=set)
    """Commits after which only runs without the optimizer were made, because it failed before."""
    original_crash: str = ""
    """How the optimizer failed on the original; then all runs were made without it."""
    defects: list[str] = field(default_factory=list)
    """Rules that raised an error, or whose patch failed its check."""
    reason: str = ""
    """Why nothing was compared, if nothing was."""

    @property
    def status(self) -> int:
        """The exit status. A defect is a finding although its rewrite was undone."""
        if self.bad is not None or self.defects or self.commits in self.crashes:
            return FINDING
        return ERROR if self.reason else 0

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "cut_out": len(self.cut_out),
            "not_optimized": sorted(self.not_optimized),
            "status": self.status,
        }


def verify_commits(
    request: Request,
    *,
    sizes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CommitVerification:
    """Runs a model on onnxruntime after each commit, always with the same inputs.

    `sizes` are the sizes to try for some open dimensions. Raises what `rewrite` raises, and
    AssumptionError for a size of a dimension that is not open.
    """
    trace = trace_of(request)
    result = CommitVerification(len(trace.commits))
    result.defects = trace.defect_texts
    with ReferenceRuns(request, seed, sizes=sizes or {}) as reference:
        result.refused_sizes = reference.refused_sizes
        if not reference.cases:
            result.reason = reference.reason
            return result
        result.original_crash = reference.original_crash
        result.coverage = reference.coverage()
        result.branch_notes = reference.branch_notes
        compare_versions(result, lambda: Replay.of(request, trace), reference, progress)
        if result.bad is None and trace.result is not None:
            _compare_result(result, trace.result, reference)
        result.cases, result.sizes = len(reference.compared), reference.tested_sizes()
        result.left_out = reference.left_out
        if result.bad is None and not reference.compared:
            result.reason = reference.left_out
    return result


@dataclass(frozen=True)
class _Version:
    """The model after a commit."""

    line: CommitLine
    touched: list[str]
    model: onnx.ModelProto


def compare_versions(
    result: CommitVerification,
    start: Callable[[], Replay],
    reference: ReferenceRuns,
    progress: Progress | None,
) -> None:
    """Runs the model after each commit, up to the first that changes what it computes.

    `start` makes a replay that has made no commit.
    """
    replay = start()
    model = replay.model()
    found = _compared(result, reference, 0, model, optimizes=True)
    if found:
        result.bad = _with_numbers(BadCommit(0), found[0], None)
        return
    if size(model) >= LARGE:
        cut_outs = CutOuts.of(replay.engine, reference, model)
        if cut_outs is not None:
            _compare_cut_outs(result, start, replay, cut_outs, progress)
            return
    _compare_each(result, replay, reference, progress, result.commits)


def _compare_cut_outs(
    result: CommitVerification,
    start: Callable[[], Replay],
    replay: Replay,
    cut_outs: CutOuts,
    progress: Progress | None,
) -> None:
    """Runs the whole model after every `WHOLE` commits, and after those that a cut-out cannot
    check; in between, only what a commit touched.
    """
    good = 0
    for line in replay.commits:
        if progress is not None:
            progress(line.number, result.commits)
        same = cut_outs.is_same_after(replay.advance())
        if same and line.number % WHOLE and line.number < result.commits:
            result.cut_out.add(line.number)
            continue
        if not _compared(result, cut_outs.reference, line.number, replay.model(), optimizes=True):
            good = line.number
            cut_outs.accept_whole_model()
            continue
        again = start()
        again.go_to(good)
        _compare_each(result, again, cut_outs.reference, progress, line.number)
        return


def _compare_each(
    result: CommitVerification,
    replay: Replay,
    reference: ReferenceRuns,
    progress: Progress | None,
    last: int,
) -> None:
    """Runs the whole model after each commit, up to the last one or the first bad one."""
    before = replay.model()
    backoff = OptimizerBackoff()
    for version in _prefetched(_versions(replay, last)):
        number = version.line.number
        if progress is not None:
            progress(number, result.commits)
        optimizes = backoff.optimizes() or number == result.commits
        found = _compared(result, reference, number, version.model, optimizes)
        if found:
            inner = reference.first_tensor(before, version.model)
            result.bad = bad_commit(version.line, found[0], inner)
            result.bad.touched = version.touched
            return
        if optimizes:
            backoff.record(failed=number in result.crashes)
        before = version.model


def _compare_result(
    result: CommitVerification, model: onnx.ModelProto, reference: ReferenceRuns
) -> None:
    """Compares the result of the rewrite itself, from which that of a replay might differ."""
    found = reference.differences(model)
    if found:
        result.bad = _with_numbers(BadCommit(result.commits, rule=END), found[0], None)


def _versions(replay: Replay, last: int) -> Iterator[_Version]:
    for line in replay.commits[replay.position : last]:
        patch = replay.advance()
        names = (t.name for node in patch.touched for t in node.outputs if t.name)
        yield _Version(line, list(dict.fromkeys(names)), replay.model())


def _prefetched(items: Iterator[T]) -> Iterator[T]:
    """Yields the items; makes each in another thread while the previous one is in use.

    An error in making an item is raised when its turn comes.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = thread.submit(list, islice(items, 1))
        while item := pending.result():
            pending = thread.submit(list, islice(items, 1))
            yield from item


def _compared(
    result: CommitVerification,
    reference: ReferenceRuns,
    number: int,
    model: onnx.ModelProto,
    optimizes: bool,
) -> list[Difference]:
    found = reference.differences(model, optimizes)
    result.checked += 1
    if reference.crash:
        result.crashes[number] = reference.crash
    elif not optimizes:
        result.not_optimized.add(number)
    return found


def bad_commit(line: CommitLine, found: Difference, inner: Difference | None) -> BadCommit:
    """A commit that changes an output; `inner` is the first difference in the main graph."""
    bad = BadCommit(
        line.number, line.phase, line.rule, line.file, line.line, line.node, line.place, line.edits
    )
    return _with_numbers(bad, found, inner)


def _with_numbers(bad: BadCommit, found: Difference, inner: Difference | None) -> BadCommit:
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


def render(result: CommitVerification, title: str) -> list[RenderableType]:
    """The result, the bad commit if there is one, and what was run."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    for node, values in result.coverage.items():
        parts.append(Text(f"{node}: ran with {values}", style="dim"))
    parts += [Text(f"defect: {defect}", style="yellow") for defect in result.defects]
    parts += [Text(note, style="yellow") for note in refusal_notes(result.refused_sizes)]
    if result.reason:
        return [*parts, Text(f"nothing was compared: {result.reason}", style="red")]
    commits = f"{result.commits} commit{'s' * (result.commits != 1)}"
    runs = f"{result.cases} run{'s' * (result.cases != 1)}" + (
        f" ({result.sizes})" if result.sizes else ""
    )
    if result.original_crash:
        parts.append(Text(optimizer_note(result.original_crash), style="yellow"))
    if result.left_out:
        parts.append(Text(result.left_out, style="yellow"))
    parts += [Text(note, style="yellow") for note in result.branch_notes]
    if result.crashes:
        parts.append(Text(_crash_text(result), style="yellow"))
    if result.bad is None:
        text = f"equal after each of {commits}, in {runs}"
        if result.cut_out:
            text += f"; {len(result.cut_out)} of them by the nodes that they touched"
        return [*parts, Text(text, style="green")]
    summary = Text(f"{commits}; {runs}", style="dim")
    return [*parts, _render_bad(result.bad), summary]


def _crash_text(result: CommitVerification) -> str:
    without = [*result.crashes, *result.not_optimized]
    first, last = min(without), max(without)
    commits = f"commit {first}" if first == last else f"commits {first} to {last}"
    if len(without) <= last - first:
        commits = f"{len(without)} of the {commits}"
    tried = (
        f", which were tried after {len(result.crashes)} of them" if result.not_optimized else ""
    )
    text = result.crashes[min(result.crashes)]
    return f"after {commits}, the model runs with graph optimizations off{tried}: {text}"


def _render_bad(bad: BadCommit) -> RenderableType:
    """A bad commit: rule, place, numbers, edits."""
    if bad.number == 0:
        return Text(f"reading and writing the model changes it: {bad.difference}", style="red")
    if bad.rule == END:
        text = f"equal after each of {bad.number} commits, but the result differs: {bad.difference}"
        return Text(text, style="red")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    place = f" in {bad.place}" if bad.place else ""
    sizes = ", ".join(f"{name}={size}" for name, size in bad.sizes.items())
    rows = [
        ("first bad commit", f"{bad.number}: {bad.rule} at {bad.node}{place}"),
        ("rule", f"{bad.file}:{bad.line}"),
        ("first tensor", f"`{bad.tensor}`: {bad.tensor_difference}"),
        ("output", f"`{bad.output}`: {bad.difference}" + (f" (at {sizes})" if sizes else "")),
        ("touched", ", ".join(f"`{name}`" for name in bad.touched[:_MOST_EDITS])),
        *(("", edit) for edit in bad.edits[:_MOST_EDITS]),
    ]
    for name, text in rows:
        table.add_row(name, Text(text))
    return table
