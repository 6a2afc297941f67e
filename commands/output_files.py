"""Plans which files a command writes, and checks them before the work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..rewrite.errors import ModelError
from ..rewrite.storage.files import data_path, given_name
from ..rewrite.storage.output_checks import check_inputs_kept, check_target, refuse_standard_output


def plan_outputs(sources: Sequence[Path], out: str) -> list[tuple[Path, Path]]:
    """Pairs of each model and the file to write for it.

    A folder among the sources stands for the .onnx files in it, which keep their relative paths.
    `out` is a file if the only source is a file and it does not end with a slash, or else a folder,
    which may not exist yet.
    Raises ModelError if a model is missing, is named twice, or would be overwritten.
    """
    output = Path(out)
    models = [found for source in sources for found in _models_of(source, output)]
    one_file = len(sources) == 1 and not sources[0].is_dir() and not output.is_dir()
    if one_file and not out.endswith(("/", os.sep)):
        plan = [(sources[0], output)]
    else:
        _check_folder(output)
        plan = [(model, output / relative) for model, relative in models]
    _check_distinct([*plan, *((model, data_path(target)) for model, target in plan)])
    for _, target in plan:
        check_target(target, output)
    _check_inputs_kept(plan)
    return plan


def _check_inputs_kept(plan: Sequence[tuple[Path, Path]]) -> None:
    """Raises ModelError if the rewrite of one model would replace a file of any model."""
    models, outputs = zip(*plan)
    if len(plan) > 1:
        # The weights of the same model need no check: saving a model keeps the files it refers to.
        outputs += tuple(map(data_path, outputs))
    check_inputs_kept(outputs, models)


def plan_traces(
    plan: Sequence[tuple[Path, Path]], output: Path, trace: Path | None
) -> list[Path | None]:
    """The trace file of each model: `trace` itself, or a file in the folder `trace`.

    In a folder, each trace has the relative path of the rewritten model in `output`. `plan` is the
    result of `plan_outputs`. Raises ModelError if several models need a folder that does not exist,
    or if a trace would overwrite a model or another trace.
    """
    if trace is None:
        return [None] * len(plan)
    refuse_standard_output(trace, "--trace")
    if len(plan) == 1 and not trace.is_dir():
        traces = [trace]
    elif trace.is_dir():
        traces = [trace / _relative(target, output).with_suffix(".jsonl") for _, target in plan]
    else:
        raise ModelError(
            "The traces of several models need a folder",
            where=f"--trace {trace}",
            remedy="Create the folder first",
        )
    _check_distinct([(model, path) for (model, _), path in zip(plan, traces)])
    _check_traces(traces, plan)
    if trace.is_dir():
        _make_folders(traces)
    return list(traces)


def _relative(target: Path, output: Path) -> Path:
    return Path(target.name) if target == output else target.relative_to(output)


def _make_folders(files: Sequence[Path]) -> None:
    for folder in dict.fromkeys(file.parent for file in files):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelError(
                f"The folder of a trace cannot be created: {error.strerror}",
                where=f"folder '{folder}'",
                remedy="Check the permissions of the folder of the traces",
            ) from error


def onnx_files(folder: Path) -> list[Path]:
    """The models in a folder and its subfolders, except hidden ones, which belong to tools."""
    return sorted(
        path
        for path in folder.rglob("*.onnx")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts[:-1])
    )


def _models_of(source: Path, output: Path) -> list[tuple[Path, Path]]:
    """The models that a source stands for, with their paths relative to the output folder."""
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
        raise no_models(source)
    return [(path, path.relative_to(source)) for path in found]


def no_models(folder: Path) -> ModelError:
    """The error for a folder without models."""
    return ModelError(
        "This is a folder that contains no .onnx file",
        where=f"folder '{folder}'",
        remedy="Name a file, or a folder with .onnx files",
    )


def _check_traces(traces: Sequence[Path], plan: Sequence[tuple[Path, Path]]) -> None:
    models = {path.resolve() for pair in plan for path in pair}
    weights = {data_path(target).resolve() for _, target in plan}
    for trace in traces:
        if trace.resolve() in models | weights:
            kind = "a model" if trace.resolve() in models else "the weights of a rewritten model"
            raise ModelError(
                f"The trace would be written over {kind}",
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
            names = f"'{given_name(other)}' and '{given_name(model)}'"
            raise ModelError(
                f"{names} would be written to the same file",
                where=f"file '{target}'",
                remedy="Rewrite them in two calls",
            )
