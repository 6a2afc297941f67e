"""Steps through the commits of a rewrite, forwards and backwards.

Going back starts a new replay: a replay does not search, so even the last of thousands of commits
is reached quickly.
"""

from __future__ import annotations

import cmd
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from ..request import Request
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.files import save
from ..rewrite.storage.output_checks import check_output
from .commit_diff import CommitDiff, advance
from .replay import Replay
from .trace_reader import CommitLine, RecordedTrace, trace_of
from .trace_writer import FOUND

COLOURS = {"+": "green", "-": "red"}


class CommitCursor:
    """A position among the commits of a rewrite. Raises LoopliftError for one that is not there."""

    def __init__(
        self, request: Request, trace: RecordedTrace | None = None, source: Path | None = None
    ) -> None:
        """`source` is the file of the model, which `dump` does not overwrite."""
        self._request = request
        self._source = source
        self._trace = trace if trace is not None else trace_of(request)
        self._replay = Replay.of(request, self._trace)
        self.diff: CommitDiff | None = None
        """The commit that led here; None at the start."""

    @property
    def position(self) -> int:
        """The number of commits made."""
        return self._replay.position

    @property
    def commits(self) -> list[CommitLine]:
        return self._trace.commits

    def go_to(self, number: int) -> CommitDiff | None:
        """Goes to the model after a commit, 0 for the model in the file."""
        if not 0 <= number <= len(self.commits):
            raise LoopliftError(
                f"There is no commit {number}",
                remedy=f"The commits are numbered from 0 to {len(self.commits)}",
            )
        if number < self.position or (number == self.position and self.diff is None):
            self._replay = Replay.of(self._request, self._trace)
        if number == 0:
            self.diff = None
        elif number != self.position or self.diff is None:
            self._replay.go_to(number - 1)
            self.diff = advance(self._replay)
        return self.diff

    def run_to(self, wanted: Callable[[CommitLine], bool], what: str) -> CommitDiff | None:
        """Goes to the next commit that is wanted; `what` describes it in the error."""
        for commit in self.commits[self.position :]:
            if wanted(commit):
                return self.go_to(commit.number)
        raise LoopliftError(
            f"No commit after {self.position} {what}", remedy="Go back first, or see: list"
        )

    def dump(self, path: Path) -> None:
        """Writes the model at this position. Raises ModelError if it cannot be written, or if that
        would overwrite the source or its weights.
        """
        if self._source is not None:
            check_output(path, self._source)
        save(self._replay.model(), path, base_dir=self._request.base_dir)


def concerns(commit: CommitLine, name: str) -> bool:
    """Whether a commit is about a node or value of this name."""
    return f"`{name}`" in commit.node or any(f"`{name}`" in edit for edit in commit.edits)


class Shell(cmd.Cmd):
    """The commands of `looplift step`."""

    prompt = "step> "
    intro = "next, back, goto N, rule R, node N, list, show, dump FILE, quit; help explains each"

    def __init__(self, cursor: CommitCursor, console: Console, as_json: bool = False) -> None:
        super().__init__()
        self._cursor = cursor
        self._console = console
        self._as_json = as_json
        self.failure = ""
        """Why the last command failed; empty if it did not."""

    def run_script(self, commands: Iterable[str]) -> None:
        """Carries out commands until one fails or is `quit`."""
        for command in commands:
            self.failure = ""
            if self.onecmd(command.strip()) or self.failure:
                return

    def do_next(self, argument: str) -> None:
        """next [N]: make the next commit, or the next N."""
        self._go(self._cursor.position + self._count(argument))

    def do_back(self, argument: str) -> None:
        """back [N]: take back the last commit, or the last N."""
        self._go(self._cursor.position - self._count(argument))

    def do_goto(self, argument: str) -> None:
        """goto N: go to the model after commit N; 0 is the model in the file."""
        self._guarded(lambda: self._go(int(argument)), "goto takes the number of a commit")

    def do_rule(self, argument: str) -> None:
        """rule R: go to the next commit of a rule."""
        self._run_to(lambda commit: commit.rule == argument, f"is of the rule {argument!r}")

    def do_node(self, argument: str) -> None:
        """node N: go to the next commit about a node or value of this name."""
        self._run_to(lambda commit: concerns(commit, argument), f"is about {argument!r}")

    def do_list(self, argument: str) -> None:
        """list: print all commits, one per line; list WORD: only those that contain the word."""
        for commit in self._cursor.commits:
            line = f"{commit.number:5} {commit.rule} at {commit.node}"
            if argument in line:
                here = "*" if commit.number == self._cursor.position else " "
                self._console.print(Text(here + line))

    def do_show(self, _: str) -> None:
        """show: print the commit that led here."""
        self._show(self._cursor.diff)

    def do_dump(self, argument: str) -> None:
        """dump FILE: write the model at this position."""
        paths = shlex.split(argument)
        if len(paths) != 1:
            self._fail("dump takes one file")
            return
        self._guarded(lambda: self._cursor.dump(Path(paths[0])), "")
        if not self.failure:
            self._console.print(Text(f"written: {paths[0]}"))

    def do_quit(self, _: str) -> bool:
        """quit: leave."""
        return True

    do_EOF = do_quit  # noqa: N815  the name cmd looks for

    def emptyline(self) -> bool:
        """Makes the next commit in a terminal, and does nothing in a script."""
        if self.use_rawinput and self._console.is_terminal:
            self.do_next("")
        return False

    def default(self, line: str) -> None:
        self._fail(f"{line!r} is not a command; help lists them")

    # --- shared by the commands ---

    def _count(self, argument: str) -> int:
        if argument and not argument.isdigit():
            self._fail(f"{argument!r} is not a number of commits")
            return 0
        return int(argument or 1)

    def _go(self, number: int) -> None:
        if not self.failure:
            self._guarded(lambda: self._show(self._cursor.go_to(number)), "")

    def _run_to(self, wanted: Callable[[CommitLine], bool], what: str) -> None:
        self._guarded(lambda: self._show(self._cursor.run_to(wanted, what)), "")

    def _guarded(self, action: Callable[[], object], usage: str) -> None:
        try:
            action()
        except LoopliftError as error:
            self._fail(str(error))
        except ValueError:
            self._fail(usage)

    def _fail(self, text: str) -> None:
        self.failure = text
        self._console.print(Text(text, style="red"))

    def _show(self, diff: CommitDiff | None) -> None:
        if self._as_json:
            self._console.print(json.dumps(as_json(diff)), markup=False, soft_wrap=True)
            return
        for part in render(diff):
            self._console.print(part)

    def precmd(self, line: str) -> str:
        self.failure = ""
        return line


def as_json(diff: CommitDiff | None) -> dict[str, Any]:
    """A commit for programs; at the start only the number 0."""
    if diff is None:
        return {"number": 0}
    changes = asdict(diff)
    return {**changes.pop("commit"), **changes}


def render(diff: CommitDiff | None) -> list[RenderableType]:
    """Rule and place, the nodes before (`-`) and after (`+`), and what the match found."""
    if diff is None:
        return [Text("commit 0: the model in the file", style="bold")]
    commit = diff.commit
    title = f"commit {commit.number} of {diff.commits}: {commit.rule} at {commit.location}"
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(f"{commit.phase}, {commit.file}:{commit.line}", style="dim"),
    ]
    parts += [Text(str(line), style=COLOURS.get(line.mark, "")) for line in diff.lines]
    parts += [Text(f"found {_binding(*each)}") for each in diff.bindings.items()]
    return [*parts, *(Text(f"note: {note}", style="yellow") for note in commit.notes)]


def _binding(name: str, value: object) -> str:
    """A field of the match; the value alone for a match without fields."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if name == FOUND else f"{name}: {text}"
