"""The graph objects that rules see: onnx-graphsurgeon's classes, compared by identity.

onnx-graphsurgeon compares tensors by name and nodes by content. Names repeat between bodies (both
branches of an If may call a value `a`), so here a node or tensor equals only itself and can be a
dictionary key. Each object also keeps what the ONNX file says about it. Def-use chains are in the
`Index` only: graphsurgeon's lists of producers and consumers would make the cost of an edit
proportional to the number of readers, so tensors lack them, and `Node.inputs` and `Node.outputs`
are plain lists. docs/graphsurgeon.md has the reason for each override.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from .guard import Guarded, GuardedDict, GuardedList

SPACING = 1 << 256
"""The gap between the positions of the nodes of a new graph: room for 42 nested insertions, or for
about 11,000 before one node."""


class Node(Guarded, gs.Node):  # type: ignore[misc]
    """An operation, with the fields of graphsurgeon's: `inputs`, `outputs`, `attrs`, `op` …"""

    op: str
    name: str
    attrs: dict[str, Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    domain: str
    origin: onnx.NodeProto | None = None
    """The node in the file; it holds whatever graphsurgeon cannot represent."""
    order: int = 0
    """The position in the graph: a node reads only values of nodes with a smaller order."""

    def __init__(
        self,
        op: str,
        name: str = "",
        attrs: dict[str, Any] | None = None,
        inputs: Iterable[Tensor] = (),
        outputs: Iterable[Tensor] = (),
        domain: str = "",
        origin: onnx.NodeProto | None = None,
    ) -> None:
        self.__dict__.update(  # four times as fast as setting each of them
            op=op,
            name=name,
            attrs=GuardedDict(attrs or ()),
            inputs=GuardedList(inputs),
            outputs=GuardedList(outputs),
            domain=domain,
            origin=origin,
        )

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Variable(Guarded, gs.Variable):  # type: ignore[misc]
    """A value known only at run time."""

    name: str
    dtype: np.dtype[Any] | None
    shape: list[int | str | None] | None
    type: str
    info: onnx.ValueInfoProto | None = None
    """The declaration in the file: type, shape (which may be wrong), doc string, metadata.

    Export writes it as it is. Without a declaration, export writes `dtype` and `shape`."""

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any] | None = None,
        shape: list[int | str | None] | None = None,
        type: str = "tensor_type",  # noqa: A002  graphsurgeon's name
    ) -> None:
        self.__dict__.update(name=name, dtype=dtype, shape=shape, type=type)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class LazyArray(ABC):
    """An array that is decoded when it is first loaded; subclasses implement `decode`."""

    def __init__(self, dims: Iterable[int], dtype: np.dtype[Any]) -> None:
        self.shape = tuple(dims)
        self.dtype = dtype
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self._array: np.ndarray[Any, Any] | None = None

    def load(self) -> np.ndarray[Any, Any]:
        """The array, read-only. Raises ModelError if the stored data does not fit the shape."""
        if self._array is None:
            self._array = self.decode()
            self._array.setflags(write=False)
        return self._array

    @abstractmethod
    def decode(self) -> np.ndarray[Any, Any]:
        """A new array with the stored values."""


class Constant(Guarded, gs.Constant):  # type: ignore[misc]
    """An initializer."""

    info: onnx.ValueInfoProto | None = None
    """The graph input or value_info of the same name, if the file has one."""
    overridable: bool = False
    """True for the default value of a graph input, which a caller may replace. Such a constant is
    also in `Graph.inputs`."""
    listed: bool = False
    """True if the file repeats the initializer among the graph inputs, as IR versions before 4
    require. It is not an input of the graph and not in `Graph.inputs`."""

    def __init__(self, name: str, values: np.ndarray[Any, Any] | LazyArray) -> None:
        self.name = name
        self._values: np.ndarray[Any, Any] | LazyArray = values

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The value as an array; decoded on first use, and read-only, where it is from the file.

        Decoding changes nothing about the export: it writes the tensor of the file.
        """
        stored = self._values
        return stored.load() if isinstance(stored, LazyArray) else stored

    @values.setter
    def values(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Annotation:
    """A quantization annotation that refers to values, not to their names."""

    origin: onnx.TensorAnnotation
    tensor: Tensor | None
    """None if the file annotates a name that the graph does not define."""
    parameters: tuple[Tensor | None, ...]
    """Scale, zero point …, in the order of `origin.quant_parameter_tensor_names`."""


def number_nodes(nodes: Iterable[Node]) -> None:
    """Gives the nodes of a graph evenly spaced positions, in their order."""
    for place, node in enumerate(nodes):
        node.order = place * SPACING


class Graph(Guarded, gs.Graph):  # type: ignore[misc]
    """The main graph, or a body (a branch of an If, the body of a Loop or Scan)."""

    origin: onnx.GraphProto | None = None
    """The graph in the file: name, doc string, metadata."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initializers: list[Constant] = []
        """The constants stored in this graph, in file order. Export writes exactly these."""
        self.output_info: dict[Tensor, onnx.ValueInfoProto] = {}
        """The declarations of outputs whose `info` is a different declaration: a value of an outer
        graph, a graph input that is also an output."""
        self.annotations: list[Annotation] = []

    __eq__ = object.__eq__
    __hash__ = object.__hash__


Tensor = Variable | Constant

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The operators that have bodies."""


def optional(tensors: Sequence[Tensor], slot: int) -> Tensor | None:
    """The input or output in a slot; None where it is omitted."""
    return tensors[slot] if slot < len(tensors) and tensors[slot].name else None


def named_bodies(node: Node) -> list[tuple[str, Graph]]:
    """The bodies of a control-flow node with the names of their attributes, in attribute order."""
    if not node.attrs:  # the fast path for most nodes
        return []
    return [(name, value) for name, value in node.attrs.items() if isinstance(value, Graph)]


def bodies(node: Node) -> list[Graph]:
    """The bodies of a control-flow node, in attribute order."""
    return [body for _, body in named_bodies(node)] if node.attrs else []


def constant_value(node: Node) -> np.ndarray[Any, Any] | None:
    """The array of a Constant node (ONNX operator specification); None for a sparse one."""
    for name, value in node.attrs.items():
        if name == "value" and isinstance(value, Constant):
            return np.asarray(value.values)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if name in ("value_string", "value_strings"):
            return np.asarray(value, dtype=object)
    return None
