"""The public functions: rewrite a model, import it into TVM, compile it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx

from .request import Request
from .rewrite.engine.engine import Engine, Observer
from .rewrite.engine.reasons import Reason, reasons_at
from .rewrite.engine.rule import Phase
from .rewrite.engine.trace import Listener, Trace
from .rewrite.facts.assertions import Assertions, Dims, PrefixMasks, Shapes
from .rewrite.garbage_collection import collector_paused
from .rewrite.graph.ir import CONTROL_FLOW, Node
from .rewrite.storage.files import ModelSource
from .rewrite.storage.model import export_model
from .rewrite.storage.protos import nodes

if TYPE_CHECKING:
    import tvm

    from .lowering.forms import Hear

_log = logging.getLogger("looplift")


@dataclass
class Report:
    """What a rewrite did."""

    before: Counter[str]
    """Operators of the model, including those in bodies."""
    after: Counter[str]
    commits: Counter[str]
    """How often each rule fired."""
    notes: list[str]
    """What the result relies on beyond the file: first the assertions, then the assumptions of
    rules, such as that the program does not want a branch that always fails. Each sentence once."""
    defects: list[str]
    """Rules that raised an error, or whose patch failed its check and was undone."""
    seconds: float

    def control(self, counts: Counter[str]) -> dict[str, int]:
        """The control-flow operators among some counts."""
        return {op: counts[op] for op in sorted(CONTROL_FLOW) if counts[op]}


@dataclass
class RewriteResult:
    """The rewritten model and how it came about."""

    model: onnx.ModelProto
    report: Report
    trace: Trace
    engine: Engine = field(repr=False)
    """The finished engine: its graph, the facts, the rules, the assertions."""
    base_dir: str = ""
    """The folder that external data of the model is relative to."""

    def reasons(self, node: Node) -> list[Reason]:
        """Why each rule that may match at a node of the rewritten graph does not fire there.

        `result.engine.index.walk()` gives the nodes.
        """
        return reasons_at(self.engine, node)


def rewrite(
    model: ModelSource,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Dims = (),
    shapes: Shapes | None = None,
    prefix_masks: PrefixMasks = (),
    strict: bool = False,
    rules: Sequence[Phase] | None = None,
    step_limit: int | None = None,
    on_event: Listener | None = None,
    observer: Observer | None = None,
) -> RewriteResult:
    """Rewrites a model into one that computes the same with less control flow.

    `inputs` gives graph inputs values: each becomes a constant and is no longer an input. `dims`
    asserts named dims, as a mapping or as texts such as `"T=16"` and `"T>=2"`; `shapes` asserts
    shapes of inputs (a number, a name, or None for an unknown dim). `prefix_masks` names inputs or
    values of the main graph, booleans or 0 and 1, that are true first and false from some time step
    on; it maps each to its time axis, which is the second axis, as in (batch, time), or the only
    axis where none is given. `strict` preserves errors: inputs on which the original fails still
    fail. `rules` replaces the phases of looplift and of installed packages. `step_limit` stops
    after that many commits. `on_event` is called with every commit and defect, `observer` follows
    the rewrite from within.

    The given ModelProto is not changed. Raises ModelError for a model that is not valid,
    AssumptionError for an assertion that does not fit, and a LoopliftError that names the rules if
    rules undo each other's work forever.
    """
    assertions = Assertions.of(inputs, dims, shapes, prefix_masks)
    request = Request.of(model, assertions, strict=strict, phases=rules)
    return rewrite_request(request, step_limit=step_limit, on_event=on_event, observer=observer)


@collector_paused()
def rewrite_request(
    request: Request,
    *,
    step_limit: int | None = None,
    on_event: Listener | None = None,
    observer: Observer | None = None,
) -> RewriteResult:
    """Does what `rewrite` does, for a request."""
    started = time.perf_counter()
    engine = request.engine(observer, step_limit, on_event)
    engine.run()
    result = export_model(engine.model)
    trace = engine.trace
    report = Report(
        before=count_operators(request.proto),
        after=count_operators(result),
        commits=Counter(commit.rule for commit in trace.commits()),
        notes=engine.assertions.notes() + trace.notes(),
        defects=[f"{d.rule} at {d.node}: {d.reason}" for d in trace.defects()],
        seconds=time.perf_counter() - started,
    )
    return RewriteResult(result, report, trace, engine, request.base_dir)


def count_operators(proto: onnx.ModelProto) -> Counter[str]:
    """Operators of a model, including those in bodies and functions."""
    return Counter(node.op_type for root in (proto.graph, *proto.functions) for node in nodes(root))


def from_onnx(
    model: ModelSource,
    shape_dict: dict[str, list[Any]] | None = None,
    dtype_dict: str | dict[str, str] | None = "float32",
    opset: int | None = None,
    keep_params_in_input: bool = False,
    sanitize_input_names: bool = True,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Dims = (),
    shapes: Shapes | None = None,
    prefix_masks: PrefixMasks = (),
    strict: bool = False,
    rules: Sequence[Phase] | None = None,
    on_form: Hear | None = None,
) -> tvm.IRModule:
    """Converts a model into a Relax module: a drop-in for `tvm.relax.frontend.onnx.from_onnx`.

    The parameters up to `sanitize_input_names` are those of TVM; the others are those of `rewrite`,
    which runs first if the model has control flow, something is asserted, or rules are given. The
    logger "looplift" warns of everything that the result relies on. `on_form` is called for every
    loop and recurrence with the form that it takes, a kernel or a tower of functions, and why.

    Raises what `rewrite` raises, and UnsupportedError listing everything that cannot be converted.
    """
    assertions = Assertions.of(inputs, dims, shapes, prefix_masks)
    request = Request.of(model, assertions, strict=strict, phases=rules)
    return import_request(
        request,
        always_rewrites=rules is not None,
        shape_dict=shape_dict,
        dtype_dict=dtype_dict,
        opset=opset,
        keep_params_in_input=keep_params_in_input,
        sanitize_input_names=sanitize_input_names,
        on_form=on_form,
    )


def import_request(
    request: Request, *, always_rewrites: bool = False, **arguments: Any
) -> tvm.IRModule:
    """Does what `from_onnx` does, for a request; `arguments` are those of `lowering.emit`."""
    from .lowering.emit import emit

    proto = request.proto
    if always_rewrites or request.assertions or not CONTROL_FLOW.isdisjoint(count_operators(proto)):
        result = rewrite_request(request)
        proto = result.model
        for warning in (*result.report.notes, *result.report.defects):
            _log.warning("%s", warning)
    return emit(proto, base_dir=request.base_dir, **arguments)


def compile(  # noqa: A001  (called as `looplift.compile`, like `tvm.compile`)
    module: tvm.IRModule, target: str | dict[str, Any] | tvm.target.Target = "llvm"
) -> tvm.relax.VMExecutable:
    """Compiles a Relax module: `tvm.compile` with fused and scheduled kernels.

    `target` is what TVM takes, or `"native"` for the processor of this machine with all its
    instructions. `tvm.compile(module, target, relax_pipeline="looplift")` does the same. Raises
    UnsupportedError if TVM cannot compile the module.
    """
    from .lowering.compile import compile_module

    return compile_module(module, target)
