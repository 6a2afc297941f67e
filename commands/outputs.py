"""Which files a command writes, checked before the work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..rewrite.errors import ModelError


def plan_outputs(sources: Sequence[Path], output: Path) -> list[tuple[Path, Path]]:
    """The file to write for each model.

    A folder among the sources stands for the .onnx files in it, whose places in it are kept.
    `output` is a file if there is one source and it is a file, else a folder, made if need be.
    Raises ModelError if a model is missing, twice there, or would be overwritten by the result.
    """
    models = [found for source in sources for found in _models_of(source, output)]
    one_file = len(sources) == 1 and not sources[0].is_dir() and not output.is_dir()
    if one_file and not str(output).endswith(os.sep):
        plan = [(sources[0], output)]
    else:
        _check_folder(output)
        plan = [(model, output / place) for model, place in models]
    _check_distinct(plan)
    for model, target in plan:
        check_target(target, model, output)
    return plan


def plan_traces(
    plan: Sequence[tuple[Path, Path]], output: Path, trace: Path | None
) -> list[Path | None]:
    """The trace of each model: the file named, or in the folder named one for each, in the place
    that the rewritten model has in its own folder.

    `plan` is that of `plan_outputs`. Raises ModelError if there is no such folder, or a trace would
    take the place of a model or of another trace.
    """
    if trace is None:
        return [None] * len(plan)
    if len(plan) == 1 and not trace.is_dir():
        traces = [trace]
    elif trace.is_dir():
        traces = [trace / _place(target, output).with_suffix(".jsonl") for _, target in plan]
    else:
        raise ModelError(
            "The traces of several models need a folder",
            where=f"--trace {trace}",
            remedy="Make the folder first",
        )
    _check_distinct([(model, path) for (model, _), path in zip(plan, traces)])
    _check_traces(traces, plan)
    if trace.is_dir():
        _make_folders(traces)
    return list(traces)


def _place(target: Path, output: Path) -> Path:
    return Path(target.name) if target == output else target.relative_to(output)


def _make_folders(files: Sequence[Path]) -> None:
    for folder in dict.fromkeys(file.parent for file in files):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelError(
                f"The folder of a trace cannot be made: {error.strerror}",
                where=f"folder '{folder}'",
                remedy="Check the permissions of the folder of the traces",
            ) from error


def check_target(target: Path, source: Path, output: Path) -> None:
    """Raises ModelError if a file cannot be written or is the source itself.

    `output` is the target or a folder around it; only the latter may still have to be made.
    """
    if target.is_dir():
        raise ModelError("The output is a folder", where=str(target), remedy="Name a file to write")
    if target.exists() and source.exists() and target.samefile(source):
        raise ModelError(
            "The output is the model itself",
            where=f"file '{target}'",
            remedy="Write to another file: a model is never changed in place",
        )
    parent = output.absolute().parent
    if not parent.is_dir():
        raise ModelError(
            "The folder to write to does not exist",
            where=f"folder '{parent}'",
            remedy="Make it, or check the spelling of the output",
        )
    folder = target.parent if target.parent.is_dir() else parent
    if not os.access(folder, os.W_OK):
        raise ModelError(
            "Nothing can be written there",
            where=f"folder '{folder}'",
            remedy="Check its permissions, or write elsewhere",
        )


def onnx_files(folder: Path) -> list[Path]:
    """The models in a folder and below it, but in hidden folders, where tools keep their own."""
    return sorted(
        path
        for path in folder.rglob("*.onnx")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts[:-1])
    )


def _models_of(source: Path, output: Path) -> list[tuple[Path, Path]]:
    """Models with their places below the output folder."""
    if not source.exists():
        raise ModelError(
            "The model does not exist",
            where=f"file '{source}'",
            remedy="Check the spelling of the path",
        )
    if not source.is_dir():
        return [(source, Path(source.name))]
    if output.is_dir() and output.samefile(source):
        raise ModelError(
            "The output is the folder that is read",
            where=f"folder '{source}'",
            remedy="Write to another folder: a model is never changed in place",
        )
    inside = output.absolute()
    found = [path for path in onnx_files(source) if inside not in path.absolute().parents]
    if not found:
        raise ModelError(
            "This is a folder, and there is no .onnx file in it",
            where=f"folder '{source}'",
            remedy="Name a file, or a folder with .onnx files",
        )
    return [(path, path.relative_to(source)) for path in found]


def _check_traces(traces: Sequence[Path], plan: Sequence[tuple[Path, Path]]) -> None:
    models = {path.resolve() for pair in plan for path in pair}
    for trace in traces:
        if trace.resolve() in models:
            raise ModelError(
                "The trace would be written over a model",
                where=f"--trace {trace}",
                remedy="Name another file, such as trace.jsonl",
            )


def _check_folder(output: Path) -> None:
    if output.is_dir():
        return
    if output.exists() or output.suffix == ".onnx":
        raise ModelError(
            "The output of several models must be a folder",
            where=f"file '{output}'",
            remedy="Name a folder",
        )


def _check_distinct(plan: Sequence[tuple[Path, Path]]) -> None:
    taken: dict[Path, Path] = {}
    for model, target in plan:
        other = taken.setdefault(target.absolute(), model)
        if other is not model:
            raise ModelError(
                f"'{other}' and '{model}' would be written to the same file",
                where=f"file '{target}'",
                remedy="Rewrite them in two calls",
            )
