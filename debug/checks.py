"""What tells a good model from a bad one: runs on onnxruntime, or any command."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import onnx

from ..rewrite.errors import LoopliftError
from ..rewrite.running.verify import optimizer_note
from ..rewrite.storage.files import save
from .subject import Subject
from .trials import Trials

PLACE = "{}"
"""Stands for the path of the model in a command."""


class Check(Protocol):
    """Judges forms of one model."""

    def finds(self, model: onnx.ModelProto) -> str:
        """What is wrong with a form of the model; empty if nothing is."""

    def note(self) -> str:
        """What a reader should know of the check; may be empty."""


@dataclass(frozen=True)
class SameOutputs:
    """The model must compute what the original computes."""

    trials: Trials

    @classmethod
    def of(cls, subject: Subject, seed: int = 0) -> SameOutputs:
        """Raises LoopliftError if the original takes none of the inputs tried."""
        trials = Trials(subject, seed)
        if not trials.cases:
            raise LoopliftError(
                f"There is nothing to compare with: {trials.reason}",
                remedy="Assert inputs that the model takes, or give a command as --check",
            )
        return cls(trials)

    def finds(self, model: onnx.ModelProto) -> str:
        found = self.trials.differences(model)
        return str(found[0]) if found else self.trials.crash

    def note(self) -> str:
        crash = self.trials.original_crash
        return optimizer_note(crash) if crash else ""


@dataclass(frozen=True)
class Command:
    """A command that exits with another status than 0 for a bad model.

    The path of the model takes the place of `{}`, or comes last.
    """

    text: str
    base_dir: str = ""
    seconds: float = 600.0
    """A command that takes longer finds something, too."""

    def finds(self, model: onnx.ModelProto) -> str:
        with tempfile.TemporaryDirectory(prefix="looplift-") as folder:
            path = Path(folder) / "model.onnx"
            save(model, path, base_dir=self.base_dir)
            try:
                done = subprocess.run(
                    self._arguments(path), capture_output=True, text=True, timeout=self.seconds
                )
            except subprocess.TimeoutExpired:
                return f"the command takes more than {self.seconds:.0f} s"
            except OSError as error:
                raise self._unusable(error.strerror or str(error)) from error
        if not done.returncode:
            return ""
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"the command ends with {done.returncode}" + (f": {said[-1]}" if said else "")

    def note(self) -> str:
        return ""

    def _arguments(self, path: Path) -> list[str]:
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise self._unusable(str(error)) from error
        if not words:
            raise self._unusable("it is empty")
        if not any(PLACE in word for word in words):
            words.append(PLACE)
        return [word.replace(PLACE, str(path)) for word in words]

    def _unusable(self, why: str) -> LoopliftError:
        return LoopliftError(
            f"The command cannot be run: {why}",
            where=f"--check {self.text!r}",
            remedy="Name a program, with {} where the path of the model belongs",
        )
