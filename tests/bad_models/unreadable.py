"""Files that are not models, incomplete headers, and missing weights."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from .case import PLAIN, case, edited, parse, raw, text

_PLAIN_BYTES = parse(PLAIN).SerializeToString()

# Files that are not models.

raw("an empty file", b"", "is empty", "model.onnx", "export the model again")
raw("a PNG image", b"\x89PNG\r\n\x1a\n" + bytes(64), "PNG image", "binary format")
raw("a JSON file", b'{"ir_version": 8, "graph": {}}', "JSON", "binary format")
raw("a text file", b"once upon a time there was no model\n", "text file", "binary format")
raw("a PyTorch checkpoint", b"PK\x03\x04" + bytes(64), "PyTorch checkpoint", "binary format")
raw("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")
raw("a TensorFlow Lite model", b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite")
raw("noise", bytes(range(255, 100, -1)), "not an ONNX model", "binary format")
raw("a truncated model", _PLAIN_BYTES[:-9], "cut short", "bytes", "compare its size")
raw("a model cut before its graph", _PLAIN_BYTES[:2], "cut short", "model.onnx")


@case("no such file", "does not exist", "model.onnx", "spelling")
def _missing(path: Path) -> None:
    pass


@case("a folder", "is a folder", "model.onnx", "Name a file")
def _folder(path: Path) -> None:
    path.mkdir()


# Headers.

text("an opset that onnx does not know", PLAIN, "999", "too new", "opset_import", opset=999)
text("an opset that onnxruntime does not know", PLAIN, "too new", "onnxruntime", opset=28)
text("an opset of zero", PLAIN, "version 0", "opset_import", opset=0)
text("an IR version of the future", PLAIN, "IR version 99", "upgrade onnx", ir=99)


@edited("no opset", PLAIN, "no operator sets", "opset_import")
def _no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


@edited("two versions of one opset", PLAIN, "imported twice", "17", "13")
def _two_opsets(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="ai.onnx", version=13)


@edited("a domain that is not imported", PLAIN, "com.example", "Neg giving 'y'", "opset_import")
def _foreign_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


# Graphs without contents.

text("an empty graph", "g () => () { }", "empty", "no nodes and no outputs")
text("a graph without outputs", "g (float[2] x) => () { y = Neg(x) }", "no outputs", "model.onnx")

# External data.


def _external(path: Path, location: str, **entries: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    tensor = model.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


@case("external data that is missing", "'weights.bin' is missing", "tensor 'w'", "next to")
def _no_data(path: Path) -> None:
    _external(path, "weights.bin")


@case("external data that is too short", "too short", "8 bytes are needed", "tensor 'w'")
def _short_data(path: Path) -> None:
    path.with_name("weights.bin").write_bytes(bytes(7))
    _external(path, "weights.bin")


@case("external data with a length that is too small", "too short", "lists 4", "tensor 'w'")
def _short_length(path: Path) -> None:
    path.with_name("weights.bin").write_bytes(bytes(64))
    _external(path, "weights.bin", length="4")


@case("external data with an odd offset", "not a number of bytes", "'weights.bin'")
def _odd_offset(path: Path) -> None:
    path.with_name("weights.bin").write_bytes(bytes(64))
    _external(path, "weights.bin", offset="-8")


@case("external data in another folder", "not in the folder of the model", "'../weights.bin'")
def _outside_data(path: Path) -> None:
    _external(path, "../weights.bin")


@case("external data in a body that is missing", "'inner.bin' is missing", "tensor 'v'")
def _no_inner_data(path: Path) -> None:
    model = parse(
        """g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Add(x, v) },
                else_branch = e () => (float[2] b) { b = Identity(x) }>
        }"""
    )
    branch = helper.get_node_attr_value(model.graph.node[0], "then_branch")
    tensor = branch.initializer.add(
        name="v", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="inner.bin")
    path.write_bytes(model.SerializeToString())
