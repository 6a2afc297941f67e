"""Walks through a rewrite step by step, forwards and backwards.

Going back begins a new replay: a replay searches nothing, so that even the last of thousands of
steps is reached at once.
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

from ..commands.outputs import check_target
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.files import save
from .regions import Step, advance
from .replay import Replay
from .subject import Subject
from .trace_file import CommitLine, TraceFile, trace_of

COLOURS = {"+": "green", "-": "red"}


class Walk:
    """A place in a rewrite. Raises LoopliftError for a place that is not there."""

    def __init__(
        self, subject: Subject, trace: TraceFile | None = None, source: Path | None = None
    ) -> None:
        """`source` is the file of the model, which is never written to."""
        self._subject = subject
        self._source = source
        self._trace = trace if trace is not None else trace_of(subject)
        self._replay = Replay.of(subject, self._trace)
        self.shown: Step | None = None
        """The step that led here; None at the start."""

    @property
    def step(self) -> int:
        """The number of steps made."""
        return self._replay.step

    @property
    def commits(self) -> list[CommitLine]:
        return self._trace.commits

    def go_to(self, step: int) -> Step | None:
        """Goes to the model after a step, 0 for the model as it was read."""
        if not 0 <= step <= len(self.commits):
            raise LoopliftError(
                f"There is no step {step}", remedy=f"The steps go from 0 to {len(self.commits)}"
            )
        if step < self.step or (step == self.step and self.shown is None):
            self._replay = Replay.of(self._subject, self._trace)
        if step == 0:
            self.shown = None
        elif step != self.step or self.shown is None:
            self._replay.go_to(step - 1)
            self.shown = advance(self._replay)
        return self.shown

    def run_to(self, fits: Callable[[CommitLine], bool], what: str) -> Step | None:
        """Goes to the next step of a kind."""
        for commit in self.commits[self.step :]:
            if fits(commit):
                return self.go_to(commit.step)
        raise LoopliftError(
            f"No step after {self.step} {what}", remedy="Go back first, or see: list"
        )

    def dump(self, path: Path) -> None:
        """Writes the model as it stands. Raises ModelError if it cannot be written, or if that
        would overwrite the model that is walked through.
        """
        if self._source is not None:
            check_target(path, self._source, path)
        save(self._replay.model(), path, base_dir=self._subject.base_dir)


def touches(commit: CommitLine, node: str) -> bool:
    """Whether a step is about a node or value of this name."""
    return f"`{node}`" in commit.node or any(f"`{node}`" in edit for edit in commit.edits)


class Shell(cmd.Cmd):
    """The commands of `looplift step`."""

    prompt = "step> "
    intro = "next, back, goto N, rule R, node N, list, show, dump FILE, quit; help tells more"

    def __init__(self, walk: Walk, console: Console, as_json: bool = False) -> None:
        super().__init__()
        self._walk = walk
        self._console = console
        self._as_json = as_json
        self.failure = ""
        """Why the last command could not be carried out; empty if it was."""

    def run_script(self, commands: Iterable[str]) -> None:
        """Carries out commands until one fails or says quit."""
        for command in commands:
            self.failure = ""
            if self.onecmd(command.strip()) or self.failure:
                return

    def do_next(self, argument: str) -> None:
        """next [N]: make the next step, or the next N."""
        self._go(self._walk.step + self._count(argument))

    def do_back(self, argument: str) -> None:
        """back [N]: take back the last step, or the last N."""
        self._go(self._walk.step - self._count(argument))

    def do_goto(self, argument: str) -> None:
        """goto N: go to the model after step N; 0 is the model as it was read."""
        self._guarded(lambda: self._go(int(argument)), "goto takes the number of a step")

    def do_rule(self, argument: str) -> None:
        """rule R: go to the next step of a rule."""
        self._run_to(lambda commit: commit.rule == argument, f"is one of the rule {argument!r}")

    def do_node(self, argument: str) -> None:
        """node N: go to the next step about a node or value of this name."""
        self._run_to(lambda commit: touches(commit, argument), f"is about {argument!r}")

    def do_list(self, argument: str) -> None:
        """list: all steps, one line each; list WORD: those in which the word stands."""
        for commit in self._walk.commits:
            line = f"{commit.step:5} {commit.rule} at {commit.node}"
            if argument in line:
                here = "*" if commit.step == self._walk.step else " "
                self._console.print(Text(here + line))

    def do_show(self, _: str) -> None:
        """show: the step that led here."""
        self._show(self._walk.shown)

    def do_dump(self, argument: str) -> None:
        """dump FILE: write the model as it stands."""
        paths = shlex.split(argument)
        if len(paths) != 1:
            self._fail("dump takes one file")
            return
        self._guarded(lambda: self._walk.dump(Path(paths[0])), "")
        if not self.failure:
            self._console.print(Text(f"written: {paths[0]}"))

    def do_quit(self, _: str) -> bool:
        """quit: leave."""
        return True

    do_EOF = do_quit  # noqa: N815  the name cmd looks for

    def emptyline(self) -> bool:
        """An empty line does nothing; in a terminal it makes the next step."""
        if self.use_rawinput and self._console.is_terminal:
            self.do_next("")
        return False

    def default(self, line: str) -> None:
        self._fail(f"{line!r} is no command; help lists them")

    # --- what they share ---

    def _count(self, argument: str) -> int:
        if argument and not argument.isdigit():
            self._fail(f"{argument!r} is no number of steps")
            return 0
        return int(argument or 1)

    def _go(self, step: int) -> None:
        if not self.failure:
            self._guarded(lambda: self._show(self._walk.go_to(step)), "")

    def _run_to(self, fits: Callable[[CommitLine], bool], what: str) -> None:
        self._guarded(lambda: self._show(self._walk.run_to(fits, what)), "")

    def _guarded(self, action: Callable[[], object], wrong: str) -> None:
        try:
            action()
        except LoopliftError as error:
            self._fail(str(error))
        except ValueError:
            self._fail(wrong)

    def _fail(self, text: str) -> None:
        self.failure = text
        self._console.print(Text(text, style="red"))

    def _show(self, step: Step | None) -> None:
        if self._as_json:
            self._console.print(json.dumps(as_json(step)), markup=False, soft_wrap=True)
            return
        for part in render(step):
            self._console.print(part)

    def precmd(self, line: str) -> str:
        self.failure = ""
        return line


def as_json(step: Step | None) -> dict[str, Any]:
    """A step for programs; step 0 has nothing but its number."""
    if step is None:
        return {"step": 0}
    lines = [asdict(line) for line in step.lines]
    return {**asdict(step.commit), "steps": step.steps, "lines": lines}


def render(step: Step | None) -> list[RenderableType]:
    """Rule and place, then the region with `-` for how it was and `+` for how it is."""
    if step is None:
        return [Text("step 0: the model as it was read", style="bold")]
    commit = step.commit
    place = f" in {commit.place}" if commit.place else ""
    title = f"step {commit.step} of {step.steps}: {commit.rule} at {commit.node}{place}"
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(f"{commit.phase}, {commit.file}:{commit.line}", style="dim"),
    ]
    parts += [Text(str(line), style=COLOURS.get(line.mark, "")) for line in step.lines]
    return [*parts, *(Text(f"note: {note}", style="yellow") for note in commit.notes)]
