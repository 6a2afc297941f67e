"""The graph objects that rules see: onnx-graphsurgeon's, compared by identity.

onnx-graphsurgeon compares tensors by name and nodes by their whole content. Names repeat between
bodies (both branches of an If may call a value `a`), so here a node or tensor equals only itself,
can be a dictionary key, and carries what the ONNX file said about it. Def-use chains are the
`Index`'s alone: tensors lack graphsurgeon's lists of producers and consumers, which would make an
edit cost as much as a value has readers, and `Node.inputs` and `Node.outputs` are plain lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues


class Node(gs.Node):  # type: ignore[misc]
    """An operation. `inputs`, `outputs`, `attrs`, `op`, `domain` and `name` mean what they mean in
    graphsurgeon.
    """

    origin: onnx.NodeProto | None = None
    """The node as it stood in the file: the source of whatever graphsurgeon cannot hold."""
    order: float = 0.0
    """Position in the graph: a node reads only values of nodes with a smaller order."""

    def __init__(
        self,
        op: str,
        name: str = "",
        attrs: dict[str, Any] | None = None,
        inputs: Iterable[Tensor] = (),
        outputs: Iterable[Tensor] = (),
        domain: str = "",
    ) -> None:
        self.op = op
        self.name = name
        self.attrs = {} if attrs is None else attrs
        self.inputs: list[Tensor] = list(inputs)
        self.outputs: list[Tensor] = list(outputs)
        self.domain = domain

    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Variable(gs.Variable):  # type: ignore[misc]
    """A value known only at run time."""

    info: onnx.ValueInfoProto | None = None
    """The declaration in the file: type, shape (which may be false), doc string, metadata.

    This is what gets written; `dtype` and `shape` are written only where it is None."""

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any] | None = None,
        shape: list[int | str | None] | None = None,
        type: str = "tensor_type",  # noqa: A002  graphsurgeon's name
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.type = type

    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Constant(gs.Constant):  # type: ignore[misc]
    """An initializer."""

    info: onnx.ValueInfoProto | None = None
    """The graph input or value_info of the same name, if the file has one."""
    overridable: bool = False
    """True for the default value of a graph input: a caller may feed another. Such a constant
    also stands in `Graph.inputs`."""
    listed: bool = False
    """True where a file older than IR version 4 repeats the initializer among the inputs, as
    files of that age must. It is no input of the graph and does not stand in `Graph.inputs`."""
    data_location = None
    _export_dtype = None
    """Where and as what graphsurgeon would write the values; looplift's exporter decides itself."""

    def __init__(self, name: str, values: np.ndarray[Any, Any] | LazyValues) -> None:
        self.name = name
        self._values = values

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The value as an array.

        What the file stores is decoded on first use and read-only, and stays what is exported.
        """
        stored = self._values
        if isinstance(stored, LazyValues):
            return stored.load()  # type: ignore[no-any-return]
        return stored

    @values.setter
    def values(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values

    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Annotation:
    """A quantization annotation, tied to the values it speaks of rather than to their names."""

    origin: onnx.TensorAnnotation
    tensor: Tensor | None
    """None where the file annotates a name that the graph does not define."""
    parameters: tuple[Tensor | None, ...]
    """Scale, zero point …, in the order of `origin.quant_parameter_tensor_names`."""


class Graph(gs.Graph):  # type: ignore[misc]
    """The main graph, or a body (a branch of an If, the body of a Loop or Scan)."""

    origin: onnx.GraphProto | None = None
    """The graph as it stood in the file: name, doc string, metadata."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initializers: list[Constant] = []
        """The constants stored in this graph, in file order. Export writes exactly these, so a
        rule that adds a constant appends it here, and a removed one leaves the list."""
        self.output_info: dict[Tensor, onnx.ValueInfoProto] = {}
        """How the file declares an output of this graph whose own `info` is another declaration:
        a value of an outer graph, a graph input that is also an output."""
        self.annotations: list[Annotation] = []

    __eq__ = object.__eq__
    __hash__ = object.__hash__


Tensor = Variable | Constant


def named_bodies(node: Node) -> list[tuple[str, Graph]]:
    """The body graphs of a control-flow node and the attributes that hold them, in their order."""
    if not node.attrs:  # most nodes, and asked of all of them again and again
        return []
    return [(name, value) for name, value in node.attrs.items() if isinstance(value, Graph)]


def bodies(node: Node) -> list[Graph]:
    """The body graphs of a control-flow node, in attribute order."""
    return [body for _, body in named_bodies(node)] if node.attrs else []
