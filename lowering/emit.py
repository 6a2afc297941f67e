"""From an ONNX model to a Relax module, without rewriting."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx
from tvm import relax

from ..rewrite.errors import ModelError
from ..rewrite.storage.exporter import copy_fields
from .bodies import read_body
from .branches import emit_if
from .control_checks import check_control, check_functions
from .decompose import decompose
from .emitter import ControlFlow, Emitter
from .forms import OnForm
from .loops.loop import emit_loop
from .loops.scan import emit_scan
from .ranks import Ranks
from .scheduling.dataflow import split_blocks
from .signature import Shape, Signature
from .small_types import resolve_small_types
from .support import check_support
from .transform.fuse_loops import fuse_loops
from .transform.unused import without_unused
from .weights import lift_weights

CONTROL = MappingProxyType[str, ControlFlow]({"If": emit_if, "Loop": emit_loop, "Scan": emit_scan})
"""The operators with bodies, and what emits them."""


def emit(
    model: onnx.ModelProto,
    *,
    source: onnx.ModelProto | None = None,
    weights: Sequence[onnx.TensorProto] | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
    ranks: Mapping[str, str] = MappingProxyType({}),
    shape_dict: Mapping[str, Shape] | None = None,
    dtype_dict: str | Mapping[str, str] | None = "float32",
    opset: int | None = None,
    keep_params_in_input: bool = False,
    sanitize_input_names: bool = True,
    base_dir: str = "",
    on_form: OnForm | None = None,
) -> Any:
    """The model as a Relax module with one public function, `main`.

    The arguments are those of `tvm.relax.frontend.onnx.from_onnx`, and so is the result for a
    model without control flow. Sizes in `shape_dict` may also be names of symbols, or None.
    `source` is the model before a rewrite, which warnings are about; `weights` are the parameters
    of a model whose weights are inputs already (see `lift_weights`); `sizes` are the numbers of
    named dims, and `ranks` explains by name why the ranks of values are not known. `base_dir` is
    the folder of the model's external data. `on_form` is called with the form that each loop and
    recurrence takes when the module is compiled for the target in scope.

    Raises ModelError for a model that is too old, UnsupportedError for what has no translation:
    operators, all of them at once, or the first node that cannot be translated as it is used.
    """
    if model.ir_version < 3:
        raise ModelError(
            f"the model has IR version {model.ir_version}; versions before 3 are not supported",
            remedy="Convert it with onnx.version_converter",
        )
    _warn_of_defects(model if source is None else source)
    opset = _opset(model, opset)
    if keep_params_in_input and weights is None:
        model, weights = lift_weights(model)
    check_functions(model)
    model = resolve_small_types(decompose(model, opset))
    body = read_body(model.graph)
    check_control(body)
    check_support(body, frozenset(CONTROL))

    signature = Signature(model.graph, shape_dict, dtype_dict, sanitize_input_names, sizes)
    signature.add_weights(weights or (), base_dir)
    signature.add_inputs()

    emitter = Emitter(
        relax.BlockBuilder(), opset, CONTROL, base_dir, signature.parameters, ranks=Ranks(ranks)
    )
    emitter.emit_function("main", signature.variables, body, signature.values, private=False)
    module = emitter.bb.get()
    if emitter.discarded:
        module = without_unused(module)
    module = split_blocks(module)
    module["main"] = module["main"].with_attrs(signature.attributes)
    if on_form is not None:
        for form in (*emitter.forms, *fuse_loops(module)[1]):
            on_form(form)
    return module


_SMALL = 1 << 10
"""The most bytes of an initializer that the check for defects gets to see."""


def _warn_of_defects(model: onnx.ModelProto) -> None:
    """A model that breaks ONNX's rules may still be translated, but not silently."""
    try:
        onnx.checker.check_model(_without_contents(model))
    except (onnx.checker.ValidationError, ValueError) as error:
        warnings.warn(str(error), stacklevel=3)


def _without_contents(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large initializers empty: the checker serializes what it gets."""
    if all(tensor.ByteSize() <= _SMALL for tensor in model.graph.initializer):
        return model
    light = onnx.ModelProto()
    copy_fields(model, light, frozenset({"graph"}))
    copy_fields(model.graph, light.graph, frozenset({"initializer"}))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    return light


def _opset(model: onnx.ModelProto, wanted: int | None) -> int:
    """The version of the standard operators to read the model by."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    declared = versions[0] if versions else 1
    if wanted is None:
        return declared
    if wanted < declared:
        warnings.warn(
            f"The model is read by opset {wanted}, though it declares {declared}: operators whose "
            "meaning changed in between may be translated wrongly",
            stacklevel=3,
        )
    return wanted
