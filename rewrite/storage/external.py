"""External data: locates, checks and reads weights that are stored next to the model.

An external tensor names a file, relative to the folder of the model, and the bytes in it that hold
its values (onnx: docs/ExternalData.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto

from ..errors import ModelError
from ..graph.declarations import numpy_type
from .protos import NodeContainer, attributes, containers

_BITS: dict[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
    TensorProto.FLOAT6E2M3: 6,
    TensorProto.FLOAT6E3M2: 6,
}
"""The bits of element types that share a byte with others."""


@dataclass(frozen=True)
class DataRange:
    """The bytes of one tensor in a file."""

    path: Path
    offset: int
    length: int


def is_external(tensor: TensorProto) -> bool:
    """Whether the values of the tensor are stored outside the model."""
    return tensor.data_location == TensorProto.EXTERNAL


def external_tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every external tensor of the model, including those in bodies and functions."""
    roots: list[NodeContainer] = [proto.graph, *proto.functions]
    for training in proto.training_info:
        roots += [training.initialization, training.algorithm]
    for root in roots:
        for owner in containers(root):
            yield from filter(is_external, _tensors(owner))


def _tensors(owner: NodeContainer) -> Iterator[TensorProto]:
    if isinstance(owner, onnx.GraphProto):
        yield from owner.initializer
        yield from _parts(owner.sparse_initializer)
    for attribute in attributes(owner):
        yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[TensorProto]:
    kind = attribute.type
    if kind == onnx.AttributeProto.TENSOR:
        yield attribute.t
    elif kind == onnx.AttributeProto.TENSORS:
        yield from attribute.tensors
    elif kind == onnx.AttributeProto.SPARSE_TENSOR:
        yield from _parts([attribute.sparse_tensor])
    elif kind == onnx.AttributeProto.SPARSE_TENSORS:
        yield from _parts(attribute.sparse_tensors)


def _parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[TensorProto]:
    for sparse in tensors:
        yield sparse.values
        yield sparse.indices


def locations(proto: onnx.ModelProto) -> set[str]:
    """The files of external data that the model names, relative to its folder."""
    return {_location(tensor) for tensor in external_tensors(proto)}


def _location(tensor: TensorProto) -> str:
    return str({entry.key: entry.value for entry in tensor.external_data}.get("location", ""))


def data_range(tensor: TensorProto, base_dir: str) -> DataRange:
    """The location of the values of an external tensor.

    Raises ModelError if the file is missing, outside the folder of the model, or too short. A link
    may lead to the folder of the model or to that of the real model file (see `Folder`) only.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    place = f"tensor '{tensor.name}' of shape {list(tensor.dims)}"
    path = _path(location, base_dir, place)
    size = _file_size(path, location, base_dir, place)
    needed = stored_bytes(tensor)
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", needed))
    except ValueError:
        offset, length = -1, -1
    if offset < 0 or length < 0:
        raise ModelError(
            f"The offset or length of the external data in '{location}' is not a number of bytes",
            where=place,
            remedy="Export the model again",
        )
    if length < needed or offset + length > size:
        raise ModelError(
            f"The external data file '{location}' is too short: {needed} bytes are needed from "
            f"byte {offset} on, the file has {size} and the model lists {length}",
            where=place,
            remedy="The file is cut short or belongs to another model: copy or export it again",
        )
    return DataRange(path, offset, length)


def _path(location: str, base_dir: str, place: str) -> Path:
    if "\0" in location:
        raise ModelError(
            "The name of an external data file contains a NUL character",
            where=place,
            remedy="No system has such files: the model is damaged, or made to do harm",
        )
    inside = Path(os.path.normpath(location))
    if not location or inside.is_absolute() or inside.parts[:1] == (os.pardir,):
        raise ModelError(
            f"The external data file '{location}' is not in the folder of the model",
            where=place,
            remedy="ONNX allows data in this folder or below it only: export the model again",
        )
    return Path(base_dir, inside)


class Folder(str):
    """The folder of a model, as a path, with the folders that its external data may really be in.

    A hub's cache keeps a model and its data as links into one folder of blobs: data may be in the
    folder that the model was named in, or in the one that the real model file is in.
    """

    real: tuple[str, ...]
    follows_links: bool

    @classmethod
    def of(cls, model: Path, follows_links: bool = False) -> Folder:
        """The folder of a model file. `follows_links` allows links to anywhere."""
        folder = cls(model.absolute().parent)
        folder.real = tuple({os.path.realpath(folder), str(Path(os.path.realpath(model)).parent)})
        folder.follows_links = follows_links
        return folder

    def __reduce__(self) -> tuple[object, ...]:
        return _folder, (str(self), self.real, self.follows_links)


def _folder(path: str, real: tuple[str, ...], follows_links: bool) -> Folder:
    folder = Folder(path)
    folder.real, folder.follows_links = real, follows_links
    return folder


def _check_real_path(path: Path, location: str, base_dir: str, place: str) -> None:
    """Raises ModelError if links lead out of the folders that data may be in."""
    if isinstance(base_dir, Folder) and base_dir.follows_links:
        return
    allowed = base_dir.real if isinstance(base_dir, Folder) else (os.path.realpath(base_dir),)
    real = os.path.realpath(path)
    if not any(os.path.commonpath((real, folder)) == folder for folder in allowed):
        raise ModelError(
            f"The external data file '{location}' is a link to '{real}', which is not in the "
            "folder of the model",
            where=place,
            remedy="If you trust the model, copy the data there, or give --follow-links",
        )


def linked_data(proto: onnx.ModelProto, base_dir: str) -> dict[str, Path]:
    """All external data files by location, if links lead some of them out of the folder.

    onnxruntime refuses such files wherever the links lead.
    """
    files: dict[str, Path] = {}
    for tensor in external_tensors(proto):
        location = _location(tensor)
        if location not in files:
            files[location] = data_range(tensor, base_dir).path.resolve()
    home = Path(base_dir).resolve()
    return files if any(home not in file.parents for file in files.values()) else {}


def _file_size(path: Path, location: str, base_dir: str, place: str) -> int:
    _check_real_path(path, location, base_dir, place)
    if not path.is_file():
        raise ModelError(
            f"The external data file '{location}' is missing from {base_dir or 'the folder'}",
            where=place,
            remedy="Put it next to the model and give the model as a path, or export the model "
            "with its weights inside",
        )
    return path.stat().st_size


def stored_bytes(tensor: TensorProto) -> int:
    """The number of bytes that the values of the tensor occupy in a file."""
    dtype = numpy_type(tensor.data_type)
    bits = _BITS.get(tensor.data_type, 8 * dtype.itemsize if dtype is not None else 0)
    return (int(prod(tensor.dims)) * bits + 7) // 8


def read(tensor: TensorProto, base_dir: str) -> TensorProto:
    """The tensor with its values in memory. Raises ModelError as `data_range` does."""
    where = data_range(tensor, base_dir)
    with where.path.open("rb") as file:
        file.seek(where.offset)
        data = file.read(where.length)
    return TensorProto(
        name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data
    )


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model in which the initializers of the main graph have no values."""
    light = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, (str, int)):
            setattr(light, field.name, value)
        else:
            getattr(light, field.name).extend(value)
    light.graph.SetInParent()
    for field, value in proto.graph.ListFields():
        if field.name == "initializer":
            for tensor in value:
                light.graph.initializer.add(
                    name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
                )
        elif isinstance(value, str):
            setattr(light.graph, field.name, value)
        else:
            getattr(light.graph, field.name).extend(value)
    return light
