"""What the commands print. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ..debug.counts import before_after, brief
from ..debug.relax import Remarks
from ..rewrite.engine.trace import Event
from .batch import DIFFERENT, FAILED, WRITTEN, Job, Outcome, run_job, run_jobs

MOST_DIFFERENCES = 3
MOST_LINES = 20
"""Notes and the like that are printed of one kind."""


UNBROKEN = 1000
"""Columns of what is not a terminal: lines are for programs to read, not to be broken."""


def stdout() -> Console:
    """Where results go. Made for each call, because callers replace the stream."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNBROKEN)


def complain(sentence: str) -> None:
    """An error, as one paragraph."""
    typer.echo(f"looplift: {sentence}", err=True)


# --- progress, on a terminal only ---


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Say what takes so long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def telling(doing: str) -> Iterator[Callable[[str], None]]:
    """Say what takes so long, and how far it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(doing) as status:
        yield lambda news: status.update(f"{doing}: {news}")


@contextmanager
def counting(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Say how many of how many steps are done."""
    with telling(doing) as tell:
        yield lambda step, steps: tell(f"step {step} of {steps}")


def rewrite_one(job: Job) -> Outcome:
    """Rewrite one model while saying how far it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return run_job(job)
    with console.status(f"rewriting {job.source.name}") as status:
        steps = 0

        def tell(event: Event) -> None:
            nonlocal steps
            steps += 1
            status.update(f"rewriting {job.source.name}: {steps} rewrites")

        return run_job(job, tell)


def rewrite_many(work: Sequence[Job], processes: int) -> list[Outcome]:
    """Rewrite several models while saying how far it is."""
    console = Console(stderr=True)
    columns = TextColumn("rewriting"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        return list(progress.track(run_jobs(work, processes), total=len(work)))


# --- results of `rewrite` ---


def print_problems(outcomes: Iterable[Outcome]) -> None:
    """Errors and differences, also where nothing else is printed."""
    for outcome in outcomes:
        if outcome.status == FAILED:
            complain(f"{outcome.source}: {outcome.error}")
        if outcome.status == DIFFERENT:
            shown = ". ".join(outcome.differences[:MOST_DIFFERENCES])
            more = len(outcome.differences) - MOST_DIFFERENCES
            complain(
                f"{outcome.source}: the rewritten model differs from the original, so nothing was "
                f"written. {shown}{f', and {more} more' if more > 0 else ''}. The same options "
                "with `looplift verify` tell the rewrite that is wrong: please report it to the "
                "author of its rule; --no-verify writes the file nevertheless."
            )


def print_outcome(outcome: Outcome) -> None:
    """One model in full: counts, rules, notes, verification."""
    console = stdout()
    console.print(before_after(outcome.before, outcome.after))
    if outcome.rules:
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.add_column("rule")
        table.add_column("times", justify="right")
        for rule, times in sorted(outcome.rules.items(), key=lambda item: (-item[1], item[0])):
            table.add_row(rule, str(times))
        console.print("", table)
    console.print()
    print_notes(outcome.notes)
    print_notes(outcome.defects, "undone")
    if outcome.verification:
        equal = outcome.verification.startswith("equal")
        console.print(f"{'verified: ' if equal else ''}{outcome.verification}", markup=False)
    if outcome.status == WRITTEN:
        console.print(f"written: {outcome.target} ({outcome.seconds:.2f} s)")


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """One model in full, several in brief."""
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
        if outcome.verification:
            console.print(f"  {outcome.verification}", markup=False)
    written = sum(outcome.status == WRITTEN for outcome in outcomes)
    console.print(f"{written} of {len(outcomes)} written")


# --- results of `import` ---


def print_module(remarks: Remarks) -> None:
    """What a module consists of: its loops, each with its form and why, and its operators."""
    console = stdout()
    if remarks.loops:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("loop", "form", "why no kernel"):
            table.add_column(column)
        for loop in remarks.loops:
            table.add_row(Text(loop.place), loop.form, Text(loop.reason))
        console.print(table, "")
    names = [f"{name.removeprefix('relax.')} {n}" for name, n in remarks.operators.items()]
    console.print(f"operators: {', '.join(names) or 'none'}", markup=False)
    print_notes(remarks.notes)
    print_notes(remarks.warnings, "warning")


# --- notes ---


def print_notes(notes: Iterable[str], title: str = "note") -> None:
    """Remarks, each once."""
    console = stdout()
    distinct = list(dict.fromkeys(notes))
    for note in distinct[:MOST_LINES]:
        console.print(f"{title}: {note}", markup=False)
    if len(distinct) > MOST_LINES:
        console.print(f"{title}: {len(distinct) - MOST_LINES} more like these")
