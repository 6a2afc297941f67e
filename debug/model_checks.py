"""Tells good versions of a model from bad ones: by runs on onnxruntime, or by any command."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import onnx

from ..request import Request
from ..rewrite.errors import LoopliftError
from ..rewrite.running.remarks import optimizer_note, refusal_notes
from ..rewrite.storage.files import save
from .reference_runs import ReferenceRuns

PLACEHOLDER = "{}"
"""Stands for the path of the model in a command."""


class ModelCheck(Protocol):
    """Checks versions of one model."""

    def finding(self, model: onnx.ModelProto) -> str:
        """What is wrong with a version of the model; empty if nothing is."""

    def note(self) -> str:
        """What a reader should know about the check; may be empty."""


@dataclass(frozen=True)
class OutputCheck:
    """Checks that a model computes what the original computes."""

    reference: ReferenceRuns

    @classmethod
    def of(
        cls, request: Request, seed: int = 0, sizes: Mapping[str, Sequence[int]] | None = None
    ) -> OutputCheck:
        """`sizes` are the sizes to try for some open dimensions.

        Raises LoopliftError if the original accepts none of the inputs tried.
        """
        reference = ReferenceRuns(request, seed, sizes=sizes or {})
        if not reference.cases:
            raise LoopliftError(
                f"There is nothing to compare with: {reference.reason}",
                remedy="Assert inputs that the model accepts, or give a command as --check",
            )
        return cls(reference)

    def finding(self, model: onnx.ModelProto) -> str:
        found = self.reference.differences(model)
        return str(found[0]) if found else self.reference.crash

    def note(self) -> str:
        crash = self.reference.original_crash
        notes = refusal_notes(self.reference.refused_sizes)
        return "; ".join([*notes, *([optimizer_note(crash)] if crash else [])])


@dataclass(frozen=True)
class CommandCheck:
    """Runs a command, whose exit status is not 0 for a bad model.

    The path of the model replaces `{}`, or comes last.
    """

    command: str
    base_dir: str = ""
    seconds: float = 600.0
    """A command that takes longer also counts as a finding."""

    def finding(self, model: onnx.ModelProto) -> str:
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
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"the command ends with {done.returncode}" + (f": {lines[-1]}" if lines else "")

    def note(self) -> str:
        return ""

    def _arguments(self, path: Path) -> list[str]:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise self._unusable(str(error)) from error
        if not words:
            raise self._unusable("it is empty")
        if not any(PLACEHOLDER in word for word in words):
            words.append(PLACEHOLDER)
        return [word.replace(PLACEHOLDER, str(path)) for word in words]

    def _unusable(self, why: str) -> LoopliftError:
        return LoopliftError(
            f"The command cannot be run: {why}",
            where=f"--check {self.command!r}",
            remedy="Name a program, with {} where the path of the model belongs",
        )
