"""Walks graphs and emits their nodes; control flow is handed to the functions of a table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnxruntime
from tvm import relax, tirx

from ..rewrite.errors import UnsupportedError
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Node, Tensor
from ..rewrite.graph.operators import (
    STANDARD_DOMAINS,
    newest_known,
    operator,
    runtime_operator,
    unknown_attributes,
)
from .attributes import attributes
from .bodies import Body, Step, place
from .constants import array, constant
from .failures import failure
from .forms import RECURRENT, Form
from .identifiers import identifier
from .operators import Accepts, ConverterContext, find
from .operators.sizes import fail_when_run
from .ranks import Ranks
from .scope import Frame, Scope
from .sequences.lists import copy_received, wrap_optional
from .tvm_onnx import EmptyOptional, InputList, building_function
from .values import (
    ListValue,
    Received,
    Sizes,
    Value,
    as_int,
    as_tensor,
    is_prim,
    is_sequence,
    is_tensor,
    match,
    with_sizes,
)

_OF_WINDOWS = frozenset({"AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"})
"""The operators whose number of windows is a quotient, rounded down."""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "QLinearConv"})
"""The operators for which TVM compiles no result without positions."""

ControlFlow = Callable[["Emitter", Scope, Frame, Step], list[Value]]
"""Emits a node that holds bodies; gives the values of its outputs."""


@dataclass(frozen=True)
class EmittedFunction:
    """A function of the module."""

    variable: Any
    """Its GlobalVar."""
    output_kinds: list[Any]
    """One for each output: its type in the symbols of the function, or the `Element` of a list."""


@dataclass
class Emitter:
    """Emits graphs into the functions of one module."""

    bb: Any
    opset: int
    control: Mapping[str, ControlFlow]
    original: onnx.ModelProto
    """The model before it was rewritten, whose names the user knows."""
    discarded: list[str] = field(default_factory=list)
    """The names of bodies that were emitted again, which leaves functions that nothing calls."""
    ranks: Ranks = field(default_factory=Ranks)
    facts: Facts | None = None
    """What the rewriter proved; None if the model could not be rewritten."""
    versions_loops: bool = True
    """Whether a loop gets a version for equal sizes, see `loops.versioning`."""
    _forms: dict[int, Form] = field(default_factory=dict)
    """By the identity of the node: a body is emitted again if its types have to be wider."""

    @property
    def forms(self) -> list[Form]:
        """What became of the nodes that iterate, in the order of emission."""
        return list(self._forms.values())

    def note_form(self, node: Node, form: Form) -> None:
        """Remember what became of a node, instead of what an earlier attempt made of it."""
        self._forms[id(node)] = form

    def emit_body(self, scope: Scope, body: Body, values: dict[Tensor, Value]) -> list[Value]:
        """Emit a graph into a function; `values` are those that it sees. Gives its outputs."""
        with scope.frame(body, values) as frame:
            self._bind_initializers(frame)
            for position, step in enumerate(body.steps):
                frame.position = position
                results = self._emit(scope, frame, step)
                for tensor, value in zip(step.node.outputs, results, strict=False):
                    if tensor.name:
                        value = scope.derived.with_short_sizes(self.bb, value)
                        if step.node.op in _OF_WINDOWS:
                            scope.derived.learn(value, is_of_windows=True)
                        scope.bind(frame, tensor, value)
            frame.position = len(body.steps)
            return [frame.values[output] for output in body.graph.outputs]

    def emit_function(
        self,
        name: str,
        params: Sequence[Any],
        body: Body,
        values: dict[Tensor, Value],
        *,
        private: bool = True,
    ) -> EmittedFunction:
        """Emit a graph as a function of the module; `values` are those that it sees."""
        with building_function(self.bb, identifier(name, "f"), params, private=private):
            scope = Scope(self.bb, self.facts)
            seen = {tensor: self._entered(value) for tensor, value in values.items()}
            outputs = self.emit_body(scope, body, seen)
            results = scope.results(outputs)
            kinds = [
                value.element if isinstance(value, ListValue) else result.ty
                for value, result in zip(outputs, results, strict=True)
            ]
            return EmittedFunction(scope.finish(results), kinds)

    def _entered(self, value: Value) -> Value:
        """A value as the function works with it."""
        if isinstance(value, Received):
            enter = wrap_optional if value.is_optional else copy_received
            return enter(self.bb, value.variable, value.element)
        return value

    def _bind_initializers(self, frame: Frame) -> None:
        for tensor in frame.body.graph.initializers:
            if tensor in frame.body.last_use and tensor not in frame.values:
                frame.values[tensor] = constant(array(tensor))

    def _emit(self, scope: Scope, frame: Frame, step: Step) -> list[Value]:
        if step.bodies:
            return self.control[step.node.op](self, scope, frame, step)
        return self._emit_plain(scope, frame, step.node)

    def _emit_plain(self, scope: Scope, frame: Frame, node: Node) -> list[Value]:
        named = attributes(node)
        named["tvm_custom"] = {
            "name": node.name,
            "num_outputs": len(node.outputs),
            "opset": self.opset,
        }
        if node.op in RECURRENT and not node.domain:
            self.note_form(node, Form(node.op, place(node, frame.body.path)))
        converter = find(node.domain, node.op)
        assert converter is not None, "the model was searched for unknown operators beforehand"
        try:
            _need_required_inputs(node, self.opset)
            _need_known_attributes(node)
            _need_tensors(node, frame)
            inputs = InputList(
                [self._input(scope, frame, t, converter.accepts) for t in node.inputs]
            )
            ctx = ConverterContext(self.bb, node.op, inputs, named, scope.derived)
            outputs = self._outputs(frame, node, converter.convert(ctx))
            scope.broadcasts.note(inputs, outputs[0])
            return outputs
        except Exception as error:  # TVM's converters raise built-in errors of all kinds.
            given = [frame.values[t] if t.name else None for t in node.inputs]
            raise failure(
                node, frame.body, self.original, given, self.ranks.explain(given), error
            ) from error

    def _input(self, scope: Scope, frame: Frame, tensor: Tensor, accepts: Accepts) -> Value:
        """An input in a form that the node's converter takes."""
        if not tensor.name:
            return None
        value = frame.values[tensor]
        if is_tensor(value):
            return self._shaped(scope, frame, tensor, value, accepts)
        if isinstance(value, EmptyOptional | ListValue):
            return value
        if isinstance(value, Sizes):
            return value if Accepts.NARROW_SIZES in accepts else as_tensor(self.bb, value)
        if is_prim(value):
            return value if Accepts.SCALARS in accepts else as_tensor(self.bb, value)
        if isinstance(value.ty, relax.ShapeType):
            return value if Accepts.SIZES in accepts else as_tensor(self.bb, value)
        return value

    def _shaped(
        self, scope: Scope, frame: Frame, tensor: Tensor, value: Value, accepts: Accepts
    ) -> Value:
        """A tensor with a shape, if its rank is known."""
        if value.ty.shape is not None:
            return value
        if value.ty.ndim < 0:
            if Accepts.ANY_RANK not in accepts:
                raise UnsupportedError(f"the rank of {tensor.name!r} is not known")
            return value
        (kind,) = scope.sizes.refined([tensor], [with_sizes(value.ty)])
        shaped = frame.values[tensor] = match(self.bb, value, kind)
        scope.sizes.learn(tensor, shaped)
        return shaped

    def _outputs(self, frame: Frame, node: Node, value: Value) -> list[Value]:
        """The values of a node's outputs, from what its converter gave."""
        if isinstance(value, EmptyOptional | ListValue | Sizes):
            return [value]
        value = self.bb.normalize(value)
        if isinstance(value.ty, relax.TupleType):
            value = self._fields(value)
            if not _gives_one_value(node.domain, node.op):
                return self._checked(frame, node, list(value.fields))
        return self._checked(frame, node, [value])

    def _fields(self, value: Value) -> Value:
        """A tuple whose fields can be taken one by one."""
        if isinstance(value, relax.Tuple):
            return value
        size = len(value.ty.fields)
        return relax.Tuple([self.bb.emit(relax.TupleGetItem(value, i)) for i in range(size)])

    def _checked(self, frame: Frame, node: Node, values: list[Value]) -> list[Value]:
        missing = [t.name for t in node.outputs[len(values) :] if t in frame.body.last_use]
        if missing:
            raise UnsupportedError(f"its converter does not give the output {missing[0]!r}")
        return [self._with_valid_sizes(frame, node, value) for value in values]

    def _with_valid_sizes(self, frame: Frame, node: Node, value: Value) -> Value:
        """A value, without elements in place of sizes for which TVM cannot compile its node.

        A branch or loop body with a negative size fails if a run takes it. Raises UnsupportedError
        for a negative size in the main graph, which every run takes.
        """
        shape = getattr(value.ty, "shape", None)
        sizes = list(shape.values) if isinstance(shape, relax.ShapeExpr) else []
        known = [size for size in map(as_int, sizes) if size is not None]
        smallest = min(known, default=1)
        if smallest > 0 or (smallest == 0 and node.op not in _CONVOLUTIONS):
            return value
        if smallest < 0:
            if not frame.body.path:
                axis = [as_int(size) for size in sizes].index(smallest)
                cause = "; its window is larger than its input" if node.op in _OF_WINDOWS else ""
                raise UnsupportedError(
                    f"its result would have the negative size {smallest} along axis {axis}{cause}"
                )
            fail_when_run(self.bb)
        sizes = [tirx.IntImm("int64", 0) if (as_int(size) or 0) < 0 else size for size in sizes]
        return self.bb.normalize(relax.op.zeros(relax.ShapeExpr(sizes), value.ty.dtype))


@functools.cache
def _gives_one_value(domain: str, op_type: str) -> bool:
    """Whether an operator has one output, so that a tuple it gives is a sequence."""
    try:
        most: int = onnx.defs.get_schema(op_type, domain).max_output
    except onnx.defs.SchemaError:
        return False
    return most == 1


def _need_required_inputs(node: Node, opset: int) -> None:
    """Raises UnsupportedError for a node without an input that its operator needs.

    TVM ends the process for some. A composition lacks inputs that a node of a valid model omits,
    if the attributes of that node make them necessary.
    """
    found = operator(node.op, node.domain, opset)
    missing = None if found is None else found.missing_input([bool(t.name) for t in node.inputs])
    if missing is not None:
        slot, name = missing
        raise UnsupportedError(f"it lacks its input {name!r} (number {slot + 1})")


def _need_known_attributes(node: Node) -> None:
    """Raises UnsupportedError for an attribute that onnxruntime's operator does not have.

    It may belong to a later version, whose results it would change.
    """
    if node.domain in STANDARD_DOMAINS:
        return
    found = runtime_operator(node.op, node.domain)
    for name in () if found is None else unknown_attributes(attributes(node), found):
        raise UnsupportedError(
            f"it has an attribute {name!r} that onnxruntime {onnxruntime.__version__} does not know"
        )


def _need_tensors(node: Node, frame: Frame) -> None:
    """Raises UnsupportedError for a node that reads a sequence where its operator takes tensors.

    Its newest version decides: some take sequences that their first versions did not take.
    """
    found = operator(node.op, node.domain, newest_known(node.domain))
    if found is None or not found.inputs:
        return
    for slot, tensor in enumerate(node.inputs):
        formal = found.inputs[min(slot, len(found.inputs) - 1)]
        takes_sequences = any("seq(" in kind for kind in formal.allowed)
        if tensor.name and not takes_sequences and is_sequence(frame.values[tensor]):
            raise UnsupportedError(f"its input {formal.name!r} is a sequence, not a tensor")
