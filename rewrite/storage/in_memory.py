"""Models of other libraries in memory: onnx_ir, torch.onnx and onnx-graphsurgeon.

None of these libraries is imported here before the user has imported it: a model of a library
exists only where the library does.
"""

from __future__ import annotations

import sys
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from ..errors import ModelError
from ..graph import ir


def to_proto(model: Any) -> tuple[onnx.ModelProto, str]:
    """A model of another library as a ModelProto, and the folder of its external data.

    Accepts an `onnx_ir.Model`, a `torch.onnx.ONNXProgram` and an `onnx_graphsurgeon.Graph`. Raises
    ModelError for any other object, and for a model that its library cannot serialise.
    """
    try:
        if _is_ir_model(model):
            return _from_ir(model)
        if _is_program(model):
            return _from_ir(model.model)
        if isinstance(model, gs.Graph) and not isinstance(model, ir.Graph):
            return gs.export_onnx(model), ""
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"The model cannot be serialised: {error}",
            where=f"the {_type_name(model)} given",
            remedy="Save it to a file with its library, which says more about what is wrong",
        ) from error
    raise ModelError(
        f"An object of type {_type_name(model)} is not a model",
        remedy="Give a path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model, a "
        "torch.onnx.ONNXProgram or an onnx_graphsurgeon.Graph",
    )


def like(source: Any, proto: onnx.ModelProto, base_dir: str) -> Any:
    """A ModelProto as an object of the type of `source`; unchanged for a file or a ModelProto.

    `base_dir` is the folder that external data of `proto` is relative to.
    """
    if _is_ir_model(source):
        return _to_ir(proto, base_dir)
    if _is_program(source):
        return type(source)(_to_ir(proto, base_dir), source.exported_program)
    if isinstance(source, gs.Graph):
        return gs.import_onnx(proto)
    return proto


def _is_ir_model(model: Any) -> bool:
    library = sys.modules.get("onnx_ir")
    return library is not None and isinstance(model, library.Model)


def _is_program(model: Any) -> bool:
    """Whether this has the interface of `torch.onnx.ONNXProgram`, from PyTorch 2.6 on."""
    return hasattr(model, "exported_program") and _is_ir_model(getattr(model, "model", None))


def _from_ir(model: Any) -> tuple[onnx.ModelProto, str]:
    library = sys.modules["onnx_ir"]
    tensors = [
        *(value.const_value for graph in model.graphs() for value in graph.initializers.values()),
        *(a.value for graph in model.graphs() for node in graph for a in node.attributes.values()),
    ]
    folders = {str(t.base_dir) for t in tensors if isinstance(t, library.ExternalTensor)}
    if len(folders) > 1:
        raise ModelError(
            f"The weights of the model are in several folders: {', '.join(sorted(folders))}",
            where=f"the {_type_name(model)} given",
            remedy="Load them first, with onnx_ir.external_data.load_to_model",
        )
    return library.to_proto(model), next(iter(folders), "")


def _to_ir(proto: onnx.ModelProto, base_dir: str) -> Any:
    library = sys.modules["onnx_ir"]
    model = library.from_proto(proto)
    library.external_data.set_base_dir(model.graph, base_dir)
    return model


def _type_name(model: object) -> str:
    kind = type(model)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
