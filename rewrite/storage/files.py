"""Reads model files, with errors that a user can act on, and writes them atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from ..errors import ModelError
from .external import Folder, data_range, external_tensors, locations
from .in_memory import to_proto
from .output_files import (
    AtomicFiles,
    WeightsFile,
    cannot_be_written,
    check_regular,
    move_weights,
    replaces_weights,
)

_LARGEST_PROTOBUF = 2**31 - 1
_SIGNATURES = (
    (0, b"version https://git-lfs", "a Git LFS pointer to a file (run 'git lfs pull')"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes it"),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
    (0, b"\x1f\x8b", "compressed with gzip"),
    (4, b"ORTM", "a model in onnxruntime's own format"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"{", "a text file, perhaps JSON"),
)


ModelSource = Any
"""A path, the bytes of a file, an onnx.ModelProto, or a model that `in_memory.to_proto` accepts."""


STDIN = "-"
"""Stands for standard input."""


# Before Python 3.12, a subclass of Path itself cannot be instantiated.
class StandardInput(type(Path())):  # type: ignore[misc]
    """The path of the copy of a model that came on standard input, without external data."""


def given_name(path: str | os.PathLike[str]) -> str:
    """The path as the user gave it: `-` for standard input."""
    return STDIN if isinstance(path, StandardInput) else str(path)


def place_of(path: str | os.PathLike[str]) -> str:
    """How messages name a model."""
    return "standard input" if isinstance(path, StandardInput) else f"file '{path}'"


def load(source: ModelSource, follows_links: bool = False) -> tuple[onnx.ModelProto, str]:
    """Reads a model; external data stays on disk, but must exist.

    `follows_links` allows external data through links to other folders. Returns the model and the
    folder that its external data is relative to. Raises ModelError if `source` is not a model, if
    it is damaged or empty, or if external data is missing or too short.
    """
    base_dir, place = "", "the model given"
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, bytes):
        place = "the bytes given"
        proto = _parse(source, place)
    elif isinstance(source, str | os.PathLike):
        place = place_of(source)
        proto = _parse(_read(Path(source), place), place)
        base_dir = Folder.of(Path(source), follows_links)
    else:
        proto, folder = to_proto(source)
        base_dir = Folder.of(Path(folder, "model.onnx"), follows_links) if folder else ""
    _check_contents(proto, place)
    if isinstance(source, StandardInput) and any(external_tensors(proto)):
        raise ModelError(
            "The model has external data, and standard input has no folder to read it from",
            where=place,
            remedy="Give the model as a path",
        )
    for tensor in external_tensors(proto):
        data_range(tensor, base_dir)
    return proto, base_dir


def weights_files(model: Path) -> set[Path]:
    """The files with the external data of a model on disk; none if the model cannot be read."""
    try:
        proto = _parse(_read(model, place_of(model)), place_of(model))
    except ModelError:
        return set()
    return {model.parent / location for location in locations(proto)}


def _read(path: Path, place: str) -> bytes:
    _check_has_no_nul(path, place)
    if path.is_dir():
        raise ModelError("This is a folder, not a model", where=place, remedy="Name a file in it")
    try:
        if path.exists() and not path.is_file():
            raise ModelError(
                "This is a device or pipe, not a file",
                where=place,
                remedy="Save the model to a file first",
            )
        if path.stat().st_size > _LARGEST_PROTOBUF:
            raise ModelError(
                "The file is larger than 2 GiB, which no ONNX file can be",
                where=place,
                remedy="Export the model with its weights as external data",
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(
            "The model does not exist", where=place, remedy="Check the spelling of the path"
        ) from None
    except OSError as error:
        raise ModelError(
            f"The model cannot be read: {error.strerror}",
            where=place,
            remedy="Check the path and the permissions of the file",
        ) from error


def _check_has_no_nul(path: Path, place: str) -> None:
    if "\0" in str(path):
        raise ModelError(
            "The path has a NUL character, which no file name can have",
            where=place,
            remedy="Check the spelling of the path",
        )


def _parse(data: bytes, place: str) -> onnx.ModelProto:
    if not data:
        raise ModelError("The file is empty", where=place, remedy="Copy or export the model again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise _no_model(data, place) from None
    if not proto.HasField("graph"):
        raise _no_model(data, place)
    return proto


def _no_model(data: bytes, place: str) -> ModelError:
    for offset, signature, kind in _SIGNATURES:
        if data[offset:].startswith(signature):
            return _not_onnx(f"it is {kind}", place)
    if _is_text(data[:512]):
        return _not_onnx("it is a text file", place)
    # Every exporter writes field 1 first, the IR version.
    if data[0] == 0x08:
        return ModelError(
            "The ONNX file is cut short or damaged",
            where=f"{place}, {len(data)} bytes",
            remedy="Copy or download it again and compare its size with the original",
        )
    return _not_onnx("its contents are not a ModelProto", place)


def _not_onnx(reason: str, place: str) -> ModelError:
    return ModelError(
        f"This is not an ONNX model: {reason}",
        where=place,
        remedy="Give a file in ONNX's binary format, as exporters write with the suffix .onnx",
    )


def _is_text(start: bytes) -> bool:
    text = start.decode("utf-8", errors="ignore")
    return len(text) > 0 and all(char.isprintable() or char.isspace() for char in text)


def _check_contents(proto: onnx.ModelProto, place: str) -> None:
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(
            "The graph is empty: it has no nodes and no outputs",
            where=place,
            remedy="The file may be cut short; export the model again",
        )
    if not proto.graph.output:
        raise ModelError(
            "The graph has no outputs, so it computes nothing",
            where=place,
            remedy="Add the values that it should compute to the outputs of the graph",
        )


def save(proto: onnx.ModelProto, path: str | Path, *, base_dir: str = "") -> None:
    """Writes a model and, if it needs one, its file of weights; on failure neither of them.

    `base_dir` is the folder that external data of the model is relative to. The new file refers to
    external data in its own folder. Other external data is copied to `<path>.data`, and so are the
    weights of a model that is too large for one file.

    Raises ModelError if the file cannot be written.
    """
    target = Path(path)
    _check_target(proto, target, base_dir)
    try:
        with AtomicFiles() as pending:
            data = WeightsFile(_free_data_path(proto, target, base_dir), pending)
            if Path(base_dir).resolve() != target.parent.resolve():
                proto = _moved(proto, base_dir, data)
            serialised = _serialised(proto, data)
            pending.create(target).write(serialised)
    except OSError as error:
        raise cannot_be_written("The model", target, error) from error


def _check_target(proto: onnx.ModelProto, target: Path, base_dir: str) -> None:
    place = f"output '{target}'"
    _check_has_no_nul(target, place)
    if target.is_dir():
        raise ModelError("The output is a folder", where=place, remedy="Name a file in it")
    if not target.parent.is_dir():
        raise ModelError(
            f"The folder '{target.parent}' does not exist",
            where=place,
            remedy="Create it, or write somewhere else",
        )
    check_regular(target)
    if not target.exists():
        return
    for tensor in external_tensors(proto):
        if data_range(tensor, base_dir).path.samefile(target):
            raise replaces_weights(target, "the model")


def data_path(target: Path) -> Path:
    """The file of weights next to a model."""
    return target.with_name(f"{target.name}.data")


def _free_data_path(proto: onnx.ModelProto, target: Path, base_dir: str) -> Path:
    """`data_path(target)`, with a number if the model refers to that file already."""
    used = {Path(base_dir, location).resolve() for location in locations(proto)}
    path, number = data_path(target), 1
    while path.resolve() in used:
        path, number = target.with_name(f"{target.name}.{number}.data"), number + 1
    return path


def _moved(proto: onnx.ModelProto, base_dir: str, data: WeightsFile) -> onnx.ModelProto:
    """The model with its external data copied; the model itself if it has none."""
    if next(external_tensors(proto), None) is None:
        return proto
    moved = onnx.ModelProto()
    moved.CopyFrom(proto)
    for tensor in external_tensors(moved):
        data.copy(tensor, data_range(tensor, base_dir))
    return moved


def _serialised(proto: onnx.ModelProto, data: WeightsFile) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except EncodeError:
        # The model is larger than protobuf allows (2 GiB).
        return bytes(move_weights(proto, data).SerializeToString())
