"""Models in memory: converts a ModelProto to a graph that rules can change, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from ..errors import ModelError
from ..garbage_collection import collector_paused
from ..graph import ir
from ..graph.declarations import numpy_type
from ..graph.labels import standard_name
from ..graph.names import UniqueNames, defined, graphs
from ..graph.operators import runtime_version
from .exporter import Exporter, copy_fields
from .functions import inline_functions
from .importer import FIRST_IR_WITH_DEFAULTS, Importer
from .limits import newest_ir
from .naming import separate_names
from .protos import nodes
from .validate import check_graph, check_header

_TYPES_OF_IR_14 = (numpy_type(TensorProto.FLOAT6E2M3), numpy_type(TensorProto.FLOAT6E3M2))


@dataclass
class Model:
    """An ONNX model whose graph can be rewritten."""

    graph: ir.Graph
    """The main graph; bodies are `ir.Graph`s in the attributes of their nodes."""
    header: onnx.ModelProto
    """Everything but the graph: IR version, opsets, metadata, functions that are not inlined …"""
    base_dir: str = ""
    """The folder that external data is relative to."""

    def opset(self, domain: str = "") -> int:
        """The imported version of an operator set; 0 if the model does not import it."""
        return opsets(self.header).get(domain, 0)


def opsets(header: onnx.ModelProto) -> dict[str, int]:
    """The version of each imported domain, by its canonical name."""
    return {standard_name(entry.domain): entry.version for entry in header.opset_import}


def import_model(proto: onnx.ModelProto, base_dir: str = "") -> Model:
    """The model as a graph, with functions inlined and nodes in topological order.

    The graph refers to the protos that it came from, which must not change while it is in use.
    Weights are decoded only when read, and external data (relative to `base_dir`) stays on disk.

    Raises ModelError naming the place if the model is not valid.
    """
    with _readable_errors():
        check_header(proto)
    model = read_model(proto, base_dir)
    with _readable_errors():
        check_graph(model.graph, model.header)
    return model


def read_model(proto: onnx.ModelProto, base_dir: str = "") -> Model:
    """The same for a model that may break rules of ONNX, such as those for types and opsets.

    Raises ModelError for names that nothing defines, or that are defined twice, and for cycles.
    """
    with _readable_errors():
        inlined = inline_functions(proto)
        header = onnx.ModelProto()
        copy_fields(inlined, header, frozenset({"graph"}))
        _import_missing_sets(inlined.graph, header)
        with collector_paused():
            graph = Importer(header.ir_version, base_dir).graph(inlined.graph)
        return Model(graph, header, base_dir)


def _import_missing_sets(graph: onnx.GraphProto, header: onnx.ModelProto) -> None:
    """Imports the operator sets of other domains that nodes use and the model does not import.

    onnxruntime takes such models, and its own version of the set.
    """
    imported = opsets(header).keys() | {function.domain for function in header.functions}
    used = dict.fromkeys(standard_name(node.domain) for node in nodes(graph))
    for domain in used:
        if domain and domain not in imported and runtime_version(domain):
            header.opset_import.add(domain=domain, version=runtime_version(domain))


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Raises ModelError for texts that are not UTF-8, and for bodies nested too deeply."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ModelError(
            f"A text has the byte 0x{error.object[error.start]:02x}, which is not UTF-8",
            where="the texts of the model",
            remedy="The file may be damaged: copy or export it again",
        ) from None
    except RecursionError:
        raise ModelError(
            "The bodies of the model are nested too deeply",
            where="the graph of the model",
            remedy="Export the model with fewer Ifs and Loops inside each other",
        ) from None


def export_model(model: Model) -> onnx.ModelProto:
    """The model as a ModelProto.

    Renames values whose names clash, but never inputs and outputs of the main graph. Changes the IR
    version only if the file needs another one or onnxruntime rejects it. Raises ModelError for a
    text that is not UTF-8, which the model may have where no rule reads it.
    """
    with _readable_errors(), collector_paused():
        return _export(model)


def _export(model: Model) -> onnx.ModelProto:
    names = UniqueNames(model.graph)
    separate_names(model.graph, names)
    proto = onnx.ModelProto()
    copy_fields(model.header, proto, frozenset())
    proto.ir_version = _ir_version(model)
    exporter = Exporter(opsets(model.header), proto.ir_version < FIRST_IR_WITH_DEFAULTS, names)
    exporter.graph(model.graph, proto.graph)
    for domain in sorted(exporter.domains - opsets(proto).keys()):
        proto.opset_import.add(domain=domain, version=1)
    return proto


def _ir_version(model: Model) -> int:
    version = model.header.ir_version
    if version == 0:
        version = helper.find_min_ir_version_for(model.header.opset_import, True)
    if version < FIRST_IR_WITH_DEFAULTS and not _all_initializers_listed(model.graph):
        return FIRST_IR_WITH_DEFAULTS
    if version <= newest_ir() or _needs_ir_14(model.graph):
        return version
    return newest_ir()


def _needs_ir_14(root: ir.Graph) -> bool:
    """Whether the model uses types that IR version 14 added: 6 bit floats and opaque types."""
    return any(
        tensor.dtype in _TYPES_OF_IR_14
        or (isinstance(tensor, ir.Variable) and tensor.type == "opaque_type")
        for graph in graphs(root)
        for tensor in defined(graph)
    )


def _all_initializers_listed(root: ir.Graph) -> bool:
    return all(constant.listed for graph in graphs(root) for constant in graph.initializers)
