"""From an ONNX model to a Relax module.

`prepare` works on the protos of a file: it composes operators that have no translation of others.
`emit_graph` emits the graph of a model, after a rewrite or without one.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, SupportsIndex

import onnx
from tvm import relax

from ..rewrite.errors import AssumptionError, ModelError
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Tensor
from ..rewrite.graph.operators import newest_known
from ..rewrite.storage.body_arity import check_bodies
from ..rewrite.storage.exporter import copy_fields
from ..rewrite.storage.external import external_tensors
from ..rewrite.storage.model import Model, opsets, read_model
from ..rewrite.storage.redeclare import redeclare, with_opset
from .bodies import Body, read_body
from .branches import emit_if
from .decompose import decompose
from .emitter import ControlFlow, Emitter
from .forms import Form, OnForm
from .loops.loop import emit_loop
from .loops.scan import emit_scan
from .ranks import Ranks
from .scheduling.relax.dataflow import split_blocks
from .signature import Shape, Signature
from .small_types import resolve_small_types
from .support import check_support
from .transform.fuse_loops import fuse_loops
from .transform.unused import without_unused
from .weights import lift_weights

CONTROL = MappingProxyType[str, ControlFlow]({"If": emit_if, "Loop": emit_loop, "Scan": emit_scan})
"""The operators with bodies, and what emits them."""


@dataclass(frozen=True)
class ImportOptions:
    """The arguments of `tvm.relax.frontend.onnx.from_onnx`, and what goes with them.

    Sizes in `shape_dict` may also be names of symbols, or None.
    """

    shape_dict: Mapping[str, Shape] = field(default_factory=dict)
    dtype_dict: str | Mapping[str, str] | None = "float32"
    opset: int | None = None
    keep_params_in_input: bool = False
    sanitize_input_names: bool = True
    base_dir: str = ""
    """The folder of the model's external data."""
    on_form: OnForm | None = None
    """Called with the form that each loop and recurrence takes when the module is compiled for the
    target in scope."""

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The types of inputs by name."""
        return self.dtype_dict if isinstance(self.dtype_dict, Mapping) else {}


def emit(model: onnx.ModelProto, **options: Any) -> Any:
    """The model as a Relax module with one public function, `main`, without rewriting.

    `options` are those of `ImportOptions`. The result for a model without control flow is like that
    of TVM's importer. Raises what `prepare` and `emit_graph` raise.
    """
    chosen = ImportOptions(**options)
    warn_of_defects(model)
    prepared, weights = prepare(model, chosen)
    return emit_graph(read_model(prepared, chosen.base_dir), chosen, model, weights=weights)


def prepare(
    model: onnx.ModelProto, options: ImportOptions
) -> tuple[onnx.ModelProto, Sequence[onnx.TensorProto]]:
    """The model with declared inputs, and with operators that have a translation.

    The second result are the weights that became inputs because parameters are kept. The given
    model is not changed. Raises ModelError for a model that is too old, and AssumptionError for an
    opset that does not exist.
    """
    if model.ir_version < 3:
        raise ModelError(
            f"the model has IR version {model.ir_version}; versions before 3 are not supported",
            remedy="Convert it with onnx.version_converter",
        )
    opset = opsets(model).get("", 1)
    if options.opset is not None:
        version = _check_version(options.opset, opset)
        if version < opset:
            warnings.warn(
                f"The model is read by opset {version}, though it declares {opset}: "
                "operators whose meaning changed in between may be translated wrongly",
                stacklevel=3,
            )
        opset = version
        model = with_opset(model, opset)
    weights: Sequence[onnx.TensorProto] = ()
    if options.keep_params_in_input:
        model, weights = lift_weights(model)
    model = redeclare(model, options.shape_dict, options.dtypes)
    return resolve_small_types(decompose(model, opset)), weights


def _check_version(version: SupportsIndex, declared: int) -> int:
    """The version of the standard operators as an int. Raises AssumptionError if there is none."""
    newest = max(newest_known(""), declared)
    is_number = isinstance(version, SupportsIndex) and not isinstance(version, bool)
    if not is_number or not 1 <= operator.index(version) <= newest:
        raise AssumptionError(
            f"opset is {version!r}; the versions that are known are 1 to {newest}",
            remedy=f"Leave it out to read the model by the version it declares, {declared}",
        )
    return operator.index(version)


def emit_graph(
    model: Model,
    options: ImportOptions,
    original: onnx.ModelProto,
    *,
    weights: Sequence[onnx.TensorProto] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
    ranks: Mapping[Tensor, str] = MappingProxyType({}),
    declined: Mapping[str, str] = MappingProxyType({}),
    facts: Facts | None = None,
) -> Any:
    """The graph of a model as a Relax module with one public function, `main`.

    `original` is the model before it was prepared and rewritten: errors use its names. `weights`
    are those that `prepare` returns, `sizes` the numbers of named dims. `ranks` explains why the
    ranks of values are not known, and `declined` why operators were not decomposed, see
    `check_support`. Types say what `facts` know.

    Raises ModelError for bodies that do not fit their nodes, and UnsupportedError for what has no
    translation: operators, all of them at once, or the first node that cannot be translated as it
    is used.
    """
    opset = options.opset or model.opset() or 1
    body = read_body(model.graph)
    _check_bodies(body, opset)
    check_support(body, frozenset(CONTROL), declined)

    signature = Signature(
        model.graph, options.shape_dict, options.dtype_dict, options.sanitize_input_names, sizes
    )
    signature.add_weights(weights, options.base_dir)
    signature.add_inputs()

    emitter = Emitter(
        relax.BlockBuilder(),
        opset,
        CONTROL,
        original,
        ranks=Ranks(ranks),
        facts=facts,
    )
    emitter.emit_function("main", signature.variables, body, signature.values, private=False)
    module = emitter.bb.get()
    if emitter.discarded:
        module = without_unused(module)
    module = split_blocks(module)
    module["main"] = module["main"].with_attrs(signature.attributes)
    if options.on_form is not None:
        for form in _by_node([*emitter.forms, *fuse_loops(module)[1]]):
            options.on_form(form)
    return module


def _by_node(forms: Sequence[Form]) -> Iterable[Form]:
    """One form for each node: of the versions of a loop, that of a kernel."""
    found: dict[str, Form] = {}
    for form in forms:
        if form.place not in found or form.is_kernel:
            found[form.place] = form
    return found.values()


def _check_bodies(body: Body, opset: int) -> None:
    for inner in body.inside():
        for step in inner.steps:
            if step.bodies and not step.node.domain:
                check_bodies(step.node, opset, inner.path)


_SMALL = 1 << 10
"""The most bytes of an initializer that the check for defects gets to see."""


def warn_of_defects(model: onnx.ModelProto) -> None:
    """A model that breaks ONNX's rules may still be translated, but not silently."""
    try:
        onnx.checker.check_model(_with_shapes(_without_contents(model)))
    except (onnx.checker.ValidationError, ValueError) as error:
        warnings.warn(str(error), stacklevel=3)


def _without_contents(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large and external tensors empty.

    The checker serializes what it gets, and looks for files in the working directory.
    """
    inline = all(tensor.ByteSize() <= _SMALL for tensor in model.graph.initializer)
    if inline and next(external_tensors(model), None) is None:
        return model
    light = onnx.ModelProto()
    copy_fields(model, light, frozenset({"graph"}))
    copy_fields(model.graph, light.graph, frozenset({"initializer"}))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.append(_empty(tensor))
    for tensor in external_tensors(light):
        tensor.CopyFrom(_empty(tensor))
    return light


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a shape for each output, which the checker requires and reads no further.

    Exporters leave it out where they do not know the rank. The checker reports inputs without one.
    """
    if all(info.type.tensor_type.HasField("shape") for info in model.graph.output):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for info in changed.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    return changed


def _empty(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
