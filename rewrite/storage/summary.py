"""What a reader wants to know of a model first: inputs, outputs, opset, size, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from ..graph.declarations import numpy_type
from ..graph.labels import standard_name
from .external import external_tensors, stored_bytes
from .protos import nodes

CONTROL_FLOW = ("If", "Loop", "Scan")
RECURRENT = ("LSTM", "GRU", "RNN")

Counts = Mapping[str, int]

_UNITS = ("B", "KB", "MB", "GB")


@dataclass(frozen=True)
class ModelSummary:
    """A model in a few words."""

    inputs: list[str]
    """Each with its type: `x: float32[T, 3]`. Without weights that the file lists as inputs."""
    outputs: list[str]
    opset: str
    """The version of the standard operators, and of other domains: `17, com.microsoft 1`."""
    size: int
    """Bytes of the file, with its external data."""
    operators: dict[str, int]
    """Operators by name, including those in bodies and functions."""

    def head(self) -> str:
        """Size, opset and number of nodes in one line."""
        count = sum(self.operators.values())
        plural = "" if count == 1 else "s"
        return f"{size_text(self.size)}, opset {self.opset}, {count} node{plural}"


def summarize(proto: onnx.ModelProto) -> ModelSummary:
    """The summary of a model, whose weights may be external."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    opsets = {standard_name(each.domain): each.version for each in proto.opset_import}
    own = opsets.pop("", "unknown")
    return ModelSummary(
        [_value_text(value) for value in proto.graph.input if value.name not in weights],
        [_value_text(value) for value in proto.graph.output],
        ", ".join([str(own), *(f"{domain} {version}" for domain, version in opsets.items())]),
        proto.ByteSize() + sum(map(stored_bytes, external_tensors(proto))),
        dict(count_operators(proto)),
    )


def control_flow_text(counts: Counts) -> str:
    """`2 Ifs and 1 Loop`; empty for none."""
    parts = [f"{counts[op]} {op}{'s' * (counts[op] != 1)}" for op in CONTROL_FLOW if counts.get(op)]
    return " and ".join(parts)


def new_control_flow_text(counts: Counts) -> str:
    """`2 Scans are new`; empty for none."""
    verb = "is" if sum(counts.values()) == 1 else "are"
    return f"{control_flow_text(counts)} {verb} new" if counts else ""


def count_operators(proto: onnx.ModelProto) -> Counter[str]:
    """Operators of a model, including those in bodies and functions."""
    return Counter(node.op_type for root in (proto.graph, *proto.functions) for node in nodes(root))


def rows(columns: Sequence[Counts]) -> list[tuple[str, list[int]]]:
    """The rows of a table with a column for each of some counts: all nodes, control flow, and
    recurrent operators where there are any.
    """
    recurrent = [op for op in RECURRENT if any(counts.get(op) for counts in columns)]
    totals = [sum(counts.values()) for counts in columns]
    return [
        ("nodes", totals),
        *((op, [counts.get(op, 0) for counts in columns]) for op in (*CONTROL_FLOW, *recurrent)),
    ]


def brief(before: Counts, after: Counts) -> str:
    """The same in one line without zeros: `nodes 120 → 35, If 25 → 0, LSTM 2 → 1`."""
    changes = [(name, old, new) for name, (old, new) in rows([before, after]) if old or new]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in changes)


def compare(before: ModelSummary, after: ModelSummary) -> list[tuple[str, str, str]]:
    """What a table shows of two models: opset, size, nodes, control flow, changed operators."""
    counts = rows([before.operators, after.operators])
    names = {name for name, _ in counts}
    for op in sorted({*before.operators, *after.operators} - names):
        pair = [model.operators.get(op, 0) for model in (before, after)]
        if pair[0] != pair[1]:
            counts.append((op, pair))
    return [
        ("opset", before.opset, after.opset),
        ("size", size_text(before.size), size_text(after.size)),
        *((name, str(old), str(new)) for name, (old, new) in counts),
    ]


def changed_values(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Inputs or outputs with what became of each: `x: float32[T]`, `n: int64[] (removed)`."""
    types = dict(line.partition(": ")[::2] for line in after)
    lines = []
    for line in before:
        name, _, old = line.partition(": ")
        new = types.get(name)
        change = " (removed)" if new is None else "" if new == old else f" → {new}"
        lines.append(f"{line}{change}")
    return lines


def size_text(size: int) -> str:
    """A number of bytes: `512 B`, `2.3 MB`."""
    number, unit = float(size), _UNITS[0]
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def _value_text(value: onnx.ValueInfoProto) -> str:
    return f"{value.name}: {_type_text(value.type)}"


def _type_text(proto: onnx.TypeProto) -> str:
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"sequence of {_type_text(proto.sequence_type.elem_type)}"
    if kind == "optional_type":
        return f"optional {_type_text(proto.optional_type.elem_type)}"
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return "map" if kind else "?"
    tensor = getattr(proto, kind)
    dtype = numpy_type(tensor.elem_type)
    name = "string" if tensor.elem_type == onnx.TensorProto.STRING else str(dtype or "?")
    if not tensor.HasField("shape"):
        return f"{name}[?]"
    return f"{name}[{', '.join(_dims(tensor.shape.dim))}]"


def _dims(dims: Iterable[onnx.TensorShapeProto.Dimension]) -> Iterable[str]:
    return (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
