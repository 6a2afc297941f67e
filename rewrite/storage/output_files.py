"""Writes files atomically, and writes the file of weights next to a model."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import TensorProto, numpy_helper

from ..errors import ModelError
from .external import DataRange, without_weights

_ALIGNMENT = 4096
"""Tensors start at multiples of a page, so that a runtime can map them (ONNX: ExternalData.md)."""
_CHUNK = 1 << 24
_SMALLEST_MOVED = 1024


def check_regular(target: Path) -> None:
    """Raises ModelError for a device or pipe: a finished file takes the place of the old one."""
    if target.exists() and not target.is_file():
        raise ModelError(
            "The output is a device or pipe, which cannot be replaced by a file",
            where=f"output '{target}'",
            remedy="Name a file",
        )


def temporary_path(path: Path) -> Path:
    """A new name in the folder of a file, which may itself have the longest name possible."""
    return path.with_name(f".looplift-{uuid.uuid4().hex}.tmp")


class AtomicFiles:
    """A context manager that writes files under temporary names.

    At its end it renames the files, in the order of their creation; an exception removes them.
    """

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path, BinaryIO]] = []

    def create(self, path: Path) -> BinaryIO:
        """A new file that will be called `path`."""
        temporary = temporary_path(path)
        file = temporary.open("xb")
        self._files.append((temporary, path, file))
        return file

    def __enter__(self) -> AtomicFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        try:
            for _, _, file in self._files:
                file.close()
            if kind is None:
                for temporary, path, _ in self._files:
                    temporary.replace(path)
        finally:
            for temporary, _, _ in self._files:
                temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, what: str) -> None:
    """Writes a text file whole or not at all. Raises ModelError that calls the text `what`."""
    try:
        with AtomicFiles() as pending:
            pending.create(path).write(text.encode())
    except OSError as error:
        raise cannot_be_written(what, path, error) from error


def cannot_be_written(what: str, path: Path, error: OSError) -> ModelError:
    """The error for a file that the system does not let us write."""
    return ModelError(
        f"{what} cannot be written: {error.strerror or error}",
        where=f"file '{path}'",
        remedy="Check the permissions of the folder and the space left on the disk",
    )


def replaces_weights(target: Path, model: str, what: str = "The output") -> ModelError:
    """The error for an output that has the path of the weights of `model`; `what` names it."""
    return ModelError(
        f"{what} would replace the file with the weights of {model}",
        where=f"output '{target}'",
        remedy="Choose another name",
    )


class WeightsFile:
    """The file of weights next to a model, created with the first tensor."""

    def __init__(self, path: Path, pending: AtomicFiles) -> None:
        self._path = path
        self._pending = pending
        self._file: BinaryIO | None = None
        self._copied: dict[DataRange, int] = {}

    def copy(self, tensor: TensorProto, source: DataRange) -> None:
        """Copies the data of an external tensor and makes the tensor refer to the copy."""
        if source not in self._copied:
            file, self._copied[source] = self._next()
            with source.path.open("rb") as original:
                original.seek(source.offset)
                left = source.length
                while left:
                    chunk = original.read(min(left, _CHUNK))
                    if not chunk:
                        raise OSError(f"{source.path} became shorter while it was read")
                    file.write(chunk)
                    left -= len(chunk)
        self._refer(tensor, self._copied[source], source.length)

    def append(self, tensor: TensorProto, data: bytes) -> None:
        """Writes values and makes a tensor without values refer to them."""
        file, offset = self._next()
        file.write(data)
        self._refer(tensor, offset, len(data))

    def _next(self) -> tuple[BinaryIO, int]:
        if self._file is None:
            self._file = self._pending.create(self._path)
        file = self._file
        file.write(bytes(-file.tell() % _ALIGNMENT))
        return file, file.tell()

    def _refer(self, tensor: TensorProto, offset: int, length: int) -> None:
        kept = [entry for entry in tensor.external_data if entry.key == "checksum"]
        entries = {"location": self._path.name, "offset": str(offset), "length": str(length)}
        entries.update((entry.key, entry.value) for entry in kept)
        del tensor.external_data[:]
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = TensorProto.EXTERNAL


def move_weights(proto: onnx.ModelProto, data: WeightsFile) -> onnx.ModelProto:
    """A copy of the model whose initializers are in the file of weights, except small ones."""
    light = without_weights(proto)
    for slot, tensor in zip(light.graph.initializer, proto.graph.initializer, strict=True):
        values = _values(tensor)
        if len(values) < _SMALLEST_MOVED:
            slot.CopyFrom(tensor)
            continue
        if tensor.HasField("doc_string"):
            slot.doc_string = tensor.doc_string
        slot.metadata_props.extend(tensor.metadata_props)
        data.append(slot, values)
    return light


def _values(tensor: TensorProto) -> bytes:
    """The bytes for the file of weights; empty for a tensor that must stay in the model."""
    if tensor.data_type == TensorProto.STRING or tensor.data_location == TensorProto.EXTERNAL:
        return b""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
