"""Descriptions of models that looplift does not accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import parser


@dataclass(frozen=True)
class BadModel:
    """A file that is not a valid model, and words of the error about it."""

    name: str
    make: Callable[[Path], Path]
    """Writes the files into a folder and returns the path of the model."""
    words: tuple[str, ...]


CASES: list[BadModel] = []

PLAIN = "g (float[2] x) => (float[2] y) { y = Neg(x) }"


def case(name: str, *words: str) -> Callable[[Callable[[Path], None]], None]:
    """Register a function that writes `model.onnx`."""

    def register(write: Callable[[Path], None]) -> None:
        def make(folder: Path) -> Path:
            path = folder / "model.onnx"
            write(path)
            return path

        CASES.append(BadModel(name, make, words))

    return register


def text(name: str, source: str, *words: str, opset: int = 17, ir: int = 8) -> None:
    """Register a model in ONNX's text format."""

    @case(name, *words)
    def write(path: Path) -> None:
        path.write_bytes(parse(source, opset, ir).SerializeToString())


def parse(source: str, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    """A model in ONNX's text format, with a header if it has none."""
    header = f'<ir_version: {ir}, opset_import: ["": {opset}]>'
    return parser.parse_model(source if source.startswith("<") else f"{header} {source}")


def edited(
    name: str, source: str, *words: str
) -> Callable[[Callable[[onnx.ModelProto], None]], None]:
    """Register a model in text format with a change that the format cannot express."""

    def register(edit: Callable[[onnx.ModelProto], None]) -> None:
        @case(name, *words)
        def write(path: Path) -> None:
            model = parse(source)
            edit(model)
            path.write_bytes(model.SerializeToString())

    return register


def raw(name: str, data: bytes, *words: str) -> None:
    """Register a file by its bytes."""

    @case(name, *words)
    def write(path: Path) -> None:
        path.write_bytes(data)
