"""The command `reduce`: the smallest model that still shows something, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ..rewrite.errors import LoopliftError
from .reduction.files import Written, write_files
from .reduction.progress import Progress
from .reduction.questions import question
from .reduction.search import Reduction, Search
from .subject import Subject

FINDING = 1


@dataclass(frozen=True)
class Reduced:
    """A reduction and its files."""

    reduction: Reduction
    files: Written

    @property
    def status(self) -> int:
        """The exit status: a model that shows something is a finding."""
        return FINDING

    def as_json(self) -> dict[str, Any]:
        found = self.reduction
        return {
            "before": found.before,
            "after": found.after,
            "checks": found.checks,
            "remembered": found.remembered,
            "finished": found.finished,
            "seconds": found.seconds,
            "model": str(self.files.model),
            "text": str(self.files.text),
            "test": str(self.files.test),
            "clean": str(self.files.clean) if self.files.clean is not None else None,
            "status": self.status,
        }


def reduce(
    subject: Subject,
    output: Path,
    *,
    keep: str = "differs",
    command: str = "",
    rules: Sequence[str] = (),
    seed: int = 0,
    seconds: float = 3600.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Reduced:
    """Makes a model smaller while it shows what `keep` says or a command finds.

    Goes on where an interrupted call for the same model and question ended. Raises LoopliftError
    if the model does not show it to begin with.
    """
    asked = question(subject, keep, command, seed)
    about = f"{asked.text} {list(rules)} {subject.assertions}"
    progress = Progress(output, subject.proto, about, subject.base_dir)
    finished = False
    try:
        found = Search(asked, subject.base_dir, progress, seconds, tell).run(subject.proto)
        finished = found.finished
    except LoopliftError:
        finished = True  # there is nothing to go on with
        raise
    finally:
        progress.close(finished)
    files = write_files(output, found, subject, keep=keep, command=command, rules=rules)
    return Reduced(found, files)


# --- for the terminal ---


def render(reduced: Reduced, title: str) -> list[RenderableType]:
    """How much smaller it is, and the files."""
    found, files = reduced.reduction, reduced.files
    asked = f"{found.checks} checks, {found.seconds:.1f} s"
    if found.remembered:
        asked += f", {found.remembered} known from before"
    lines = [
        f"model  {files.model}",
        f"text   {files.text}",
        f"test   {files.test}",
        *(
            [f"clean  {files.clean} (the nearest model that does not show it)"]
            if files.clean
            else []
        ),
    ]
    if not found.finished:
        lines.append("the time was up: the same call goes on")
    return [
        Text(title, style="bold"),
        Text(f"{found.before} nodes → {found.after} ({asked})", style="green"),
        *(Text(line) for line in lines),
    ]
