"""Finds out before any work whether outputs can be written and would replace no input."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import ModelError
from .files import place_of, weights_files
from .output_files import check_regular, replaces_weights


def check_output(output: Path, source: Path) -> None:
    """Raises ModelError if the one output of a command cannot be written or would replace its
    input.
    """
    check_target(output, output)
    check_inputs_kept([output], [source])


def check_inputs_kept(
    outputs: Iterable[Path], sources: Iterable[Path], what: str = "The output"
) -> None:
    """Raises ModelError if an output is a model that is read, or a file with its weights.

    A model that cannot be read has no weights here; loading it gives the error. `what` is what
    the error calls an output.
    """
    existing = {_identity(path): path for path in outputs if path.is_file()}
    if not existing:
        return
    for source in filter(Path.is_file, sources):
        if _identity(source) in existing:
            raise _is_source(
                existing[_identity(source)],
                "Write to another file: a model is never changed in place",
                what,
            )
        for weights in filter(Path.is_file, weights_files(source)):
            if _identity(weights) in existing:
                raise replaces_weights(existing[_identity(weights)], place_of(source), what)


def _identity(path: Path) -> tuple[int, int]:
    """Equal for all names and links of a file."""
    status = path.stat()
    return status.st_dev, status.st_ino


def check_target(target: Path, output: Path) -> None:
    """Raises ModelError if a file cannot be written.

    `output` is the target or a folder around it. Only the folder may still have to be created.
    """
    refuse_standard_output(output, "-o")
    if target.is_dir():
        raise ModelError("The output is a folder", where=str(target), remedy="Name a file to write")
    check_regular(target)
    parent = output.absolute().parent
    if parent.exists() and not parent.is_dir():
        raise ModelError(
            "The folder to write to is a file",
            where=f"file '{parent}'",
            remedy="Name a file in a folder",
        )
    if not parent.is_dir():
        raise ModelError(
            "The folder to write to does not exist",
            where=f"folder '{parent}'",
            remedy="Create it, or check the spelling of the output",
        )
    folder = target.parent if target.parent.is_dir() else parent
    if not os.access(folder, os.W_OK):
        raise ModelError(
            "The folder cannot be written to",
            where=f"folder '{folder}'",
            remedy="Check its permissions, or write elsewhere",
        )


def refuse_standard_output(path: Path, option: str) -> None:
    """Raises ModelError for `-`, which would become the name of a file."""
    if str(path) == "-":
        raise ModelError(
            "Nothing can be written to standard output", remedy=f"Name a file after {option}"
        )


def check_not_source(target: Path, source: Path, remedy: str) -> None:
    """Raises ModelError, with this remedy, if a file to write is the model that is read."""
    if target.exists() and source.exists() and target.samefile(source):
        raise _is_source(target, remedy)


def _is_source(target: Path, remedy: str, what: str = "The output") -> ModelError:
    return ModelError(f"{what} is the model itself", where=f"file '{target}'", remedy=remedy)
