"""Prints what the commands find. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..debug.relax import ModuleSummary
from ..rewrite.errors import visible
from ..rewrite.facts.assertions import is_assertion
from ..rewrite.storage.summary import ModelSummary, brief, changed_values, compare
from .batch import DIFFERENT, FAILED, WRITTEN, Job, Outcome, run_job, run_jobs

MOST_DIFFERENCES = 3
"""Differences printed for one model."""
MOST_LINES = 20
"""Notes, defects or warnings printed for one model."""
UNLIMITED_WIDTH = 1000
"""The columns of an output that is not a terminal: programs read whole lines."""


class SafeConsole(Console):
    """A console that escapes the control characters of names; see `visible`.

    A text, and a cell of a table, is one line.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        for part in objects:
            if isinstance(part, Tree):
                _escape_labels(part)
            for column in part.columns if isinstance(part, Table) else ():
                column._cells = [_one_line(cell) for cell in column._cells]
        super().print(*map(_one_line, objects), **options)

    def on_broken_pipe(self) -> None:
        """Leaves the error to `print_errors`; rich would exit with 1, which means a finding."""
        raise BrokenPipeError

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(visible, text.split("\n"))), style)


def _escape_labels(tree: Tree) -> None:
    tree.label = _one_line(tree.label)
    for child in tree.children:
        _escape_labels(child)


def _one_line(part: Any) -> Any:
    """A text without control characters; anything else as it is."""
    if isinstance(part, str):
        return visible(part)
    if isinstance(part, Text) and not part.plain.isprintable():
        return Text(visible(part.plain), style=part.style)
    return part


def stdout() -> Console:
    """The console for results; made for each call, because callers replace the stream."""
    console = SafeConsole(highlight=False)
    return console if console.is_terminal else SafeConsole(highlight=False, width=UNLIMITED_WIDTH)


def print_error(sentence: str) -> None:
    """Prints an error as one paragraph."""
    typer.echo(f"looplift: {visible(sentence)}", err=True)


# --- progress, on a terminal only ---


@contextmanager
def show_activity(activity: str) -> Iterator[Callable[[str], None]]:
    """Shows an activity while it lasts; the function yielded shows how far it has come."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(activity) as status:
        yield lambda progress: status.update(f"{activity}: {progress}")


@contextmanager
def show_commits(activity: str) -> Iterator[Callable[[int, int], None]]:
    """Shows an activity that handles one commit after the other, and the number of the commit."""
    with show_activity(activity) as show:
        yield lambda commit, commits: show(f"commit {commit} of {commits}")


def rewrite_one(job: Job) -> Outcome:
    """Runs one job and shows the number of commits."""
    with show_activity(f"rewriting {job.source.name}") as show:
        numbers = itertools.count(1)
        return run_job(job, lambda event: show(f"{next(numbers)} rewrites"))


def rewrite_many(work: Sequence[Job], processes: int) -> list[Outcome]:
    """Runs several jobs and shows how many are done."""
    console = Console(stderr=True)
    columns = TextColumn("rewriting"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        return list(progress.track(run_jobs(work, processes), total=len(work)))


# --- results of `rewrite` ---


def print_problems(outcomes: Iterable[Outcome]) -> None:
    """Prints errors and differences, also where nothing else is printed."""
    for outcome in outcomes:
        if outcome.status == FAILED:
            print_error(f"{outcome.source}: {outcome.error}")
        if outcome.status == DIFFERENT:
            shown = ". ".join(outcome.differences[:MOST_DIFFERENCES])
            more = len(outcome.differences) - MOST_DIFFERENCES
            print_error(
                f"{outcome.source}: the rewritten model differs from the original, so nothing was "
                f"written. {shown}{f', and {more} more' if more > 0 else ''}. {outcome.remedy}. "
                "--no-verify writes the file anyway."
            )


def print_warnings(outcomes: Iterable[Outcome]) -> None:
    """Prints which results are not verified and which rules failed, in place of the outcomes."""
    for outcome in outcomes:
        if outcome.status == WRITTEN and outcome.verification.startswith("not verified"):
            print_error(f"{outcome.source}: {outcome.verification}")
        for defect in outcome.defects:
            print_error(f"{outcome.source}: rule failed: {defect}")


def print_outcome(outcome: Outcome) -> None:
    """Prints the outcome of one model: counts, rules, notes, verification."""
    console = stdout()
    if outcome.original is not None and outcome.rewritten is not None:
        console.print(*_before_after(outcome.original, outcome.rewritten), sep="\n")
    if outcome.rules:
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.add_column("rule")
        table.add_column("times", justify="right")
        for rule, times in sorted(outcome.rules.items(), key=lambda item: (-item[1], item[0])):
            table.add_row(rule, str(times))
        console.print("", table)
    console.print()
    if outcome.status == DIFFERENT:
        console.print("not written: outputs differ")  # `print_problems` says how
    elif outcome.verification:
        equal = outcome.verification.startswith("equal")
        console.print(f"{'verified: ' if equal else ''}{outcome.verification}", markup=False)
    if outcome.status == WRITTEN:
        console.print(f"written: {outcome.target} ({outcome.seconds:.2f} s)")
    print_notes(outcome.notes)
    print_notes(outcome.defects, "rule failed")


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Prints one outcome in full, several in brief."""
    if len(outcomes) == 1:
        print_outcome(outcomes[0])
        return
    console = stdout()
    for outcome in outcomes:
        done = outcome.status if outcome.status != WRITTEN else outcome.target
        console.print(Text.assemble((outcome.source, "bold"), f": {done}"))
        if outcome.status == FAILED:
            continue
        console.print(f"  {brief(outcome.before, outcome.after)}; {outcome.seconds:.2f} s")
        if outcome.verification and outcome.status != DIFFERENT:
            console.print(f"  {outcome.verification}", markup=False)
    written = sum(outcome.status == WRITTEN for outcome in outcomes)
    console.print(f"{written} of {len(outcomes)} written")


# --- results of `import` ---


def print_module(module: ModuleSummary) -> None:
    """Prints what a module consists of: the form of each loop and why, and the operators."""
    console = stdout()
    if module.loops:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("loop", "form", "why not a kernel"):
            table.add_column(column)
        for loop in module.loops:
            table.add_row(Text(loop.node), loop.form, Text(loop.reason))
        console.print(table, "")
    names = [f"{name.removeprefix('relax.')} {n}" for name, n in module.operators.items()]
    console.print(f"operators: {', '.join(names) or 'none'}", markup=False)
    print_notes(module.notes)
    print_notes(module.warnings, "warning")


# --- notes ---


def print_notes(notes: Iterable[str], title: str = "note") -> None:
    """Prints notes; for those that differ only in names, the first one and their number.

    Notes that name different assertions, made or advised, are all printed.
    """
    console = stdout()
    groups: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        names = r"`(?!--)[^`]*`|\d+"  # `--dim "T>=1"` is not a name
        key = note if is_assertion(note) else re.sub(names, "", note)
        groups.setdefault(key, []).append(note)
    for first, *others in list(groups.values())[:MOST_LINES]:
        more = f" (and {len(others)} more like this)" if others else ""
        console.print(f"{title}: {first}{more}", markup=False)
    if len(groups) > MOST_LINES:
        console.print(f"{title}: {len(groups) - MOST_LINES} more")


def _before_after(before: ModelSummary, after: ModelSummary) -> list[RenderableType]:
    """Two models side by side: inputs, outputs, opset, size, and the operators that changed."""
    values = Table(box=None, pad_edge=False, show_header=False)
    for name, lines in (
        ("inputs", changed_values(before.inputs, after.inputs)),
        ("outputs", changed_values(before.outputs, after.outputs)),
    ):
        for position, line in enumerate(lines):
            values.add_row("" if position else name, Text(line))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, old, new in compare(before, after):
        is_fewer = old.isdigit() and new.isdigit() and int(new) < int(old)
        table.add_row(name, old, Text(new, style="green" if is_fewer else ""))
    return [values, "", table]
