"""A hostile call: the files that it needs, its arguments, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import parser

MODEL = "model.onnx"
PLAIN = "g (float[N] x, float[2] z) => (float[N] y) { a = Neg(x) y = Tanh(a) }"

REWRITE = ("rewrite", MODEL, "-o", "out.onnx", "--no-verify")
VERIFIED = ("rewrite", MODEL, "-o", "out.onnx", "--time-limit", "2")


@dataclass(frozen=True)
class Case:
    """One call in an empty folder."""

    name: str
    write: Callable[[Path], None]
    """Writes the files of the call into a folder."""
    arguments: tuple[str, ...] = REWRITE
    status: int = 2
    words: tuple[str, ...] = ()
    """What the output contains."""


def model(text: str = PLAIN, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    """A model in ONNX's text format, with a header."""
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> {text}')


def file(data: bytes | onnx.ModelProto) -> Callable[[Path], None]:
    """Writes the model."""
    content = data if isinstance(data, bytes) else data.SerializeToString()

    def write(folder: Path) -> None:
        (folder / MODEL).write_bytes(content)

    return write


PLAIN_FILE = file(model())
