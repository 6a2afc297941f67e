"""A model with one If that an input decides, for tests of the commands."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import parser

GATED = """g (int64 rate, float[batch, samples] x) => (float[batch, samples] y) {
    sixteen = Constant<value_int = 16000>()
    wide = Equal(rate, sixteen)
    z = Identity(x)
    y = If(wide) <
        then_branch = fast () => (float[batch, samples] p) { p = Relu(z) },
        else_branch = slow () => (float[batch, samples] q) { q = Neg(z) }
    >
}"""


def write(path: Path, text: str = GATED) -> Path:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.save(model, path)
    return path
