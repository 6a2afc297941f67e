"""The public functions: rewrite a model, import it into TVM."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from .plugins import all_phases
from .rewrite.engine.engine import Engine, Observer
from .rewrite.engine.reasons import Reason, reasons_at
from .rewrite.engine.rule import Options, Phase
from .rewrite.engine.trace import Listener, Trace
from .rewrite.facts.assertions import assert_facts, parse_dims
from .rewrite.facts.prefix_masks import PrefixMasks
from .rewrite.garbage_collection import collector_paused
from .rewrite.graph.ir import CONTROL_FLOW, Node
from .rewrite.storage.files import load
from .rewrite.storage.model import export_model, import_model
from .rewrite.storage.protos import nodes

if TYPE_CHECKING:
    import tvm

    from .lowering.forms import Hear

_log = logging.getLogger("looplift")
Source = str | Path | bytes | onnx.ModelProto


@dataclass
class Report:
    """What a rewrite did."""

    before: Counter[str]
    """Operators of the model, bodies included."""
    after: Counter[str]
    commits: Counter[str]
    """How often each rule fired."""
    notes: list[str]
    """What the result relies on beyond the file, each sentence once: first what was asserted, then
    what rules took for granted, such as that a branch which always fails is not wanted."""
    defects: list[str]
    """Rules whose patch was wrong and undone."""
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
    """The finished engine: its graph, what is known of it, and the rules."""
    base_dir: str = ""
    """The folder the model's external data is relative to."""

    def reasons(self, node: Node) -> list[Reason]:
        """Why each rule that may start from a node of the rewritten graph does not fire there.

        `result.engine.index.walk()` gives the nodes.
        """
        return reasons_at(self.engine, node)


@collector_paused()
def rewrite(
    model: Source,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | Sequence[str] = (),
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    prefix_masks: PrefixMasks = (),
    strict: bool = False,
    rules: Sequence[Phase] | None = None,
    step_limit: int | None = None,
    on_event: Listener | None = None,
    observer: Observer | None = None,
) -> RewriteResult:
    """Rewrites a model into one with less control flow that computes the same.

    `inputs` fixes graph inputs to values: each becomes a constant and leaves the inputs. `dims`
    asserts symbolic dims, as a mapping or as texts such as `"T=16"` and `"T>=2"`; `shapes` asserts
    shapes of inputs (a number, a name, or None for an unknown dim). `prefix_masks` maps names of
    inputs or values of the main graph, booleans or 0 and 1, to the axis of the time, along which
    they are true first and false from some step on; for names alone it is the second axis, that of
    (batch, time), or the only one. `strict` keeps the behaviour of runs that fail. `rules` replaces
    looplift's phases and those of installed packages; `step_limit` stops after so many rewrites.
    `on_event` hears of every rewrite, `observer` sees it happen.

    The given ModelProto is not changed. Raises ModelError for a model that is not valid and
    AssumptionError for an assertion that does not fit; a LoopliftError names rules that undo each
    other's work for ever.
    """
    started = time.perf_counter()
    proto, base_dir = load(model)
    graph = import_model(proto, base_dir)
    assumptions, notes = assert_facts(
        graph, inputs or {}, parse_dims(dims), shapes or {}, prefix_masks
    )
    engine = Engine(
        graph,
        all_phases() if rules is None else rules,
        assumptions,
        Options(strict=strict),
        step_limit,
        Trace(listener=on_event),
        observer,
    )
    engine.run()
    result = export_model(graph)
    trace = engine.trace
    report = Report(
        before=count_operators(proto),
        after=count_operators(result),
        commits=Counter(c.rule for c in trace.commits()),
        notes=notes + trace.notes(),
        defects=[f"{d.rule} at {d.node}: {d.reason}" for d in trace.defects()],
        seconds=time.perf_counter() - started,
    )
    return RewriteResult(result, report, trace, engine, base_dir)


def count_operators(proto: onnx.ModelProto) -> Counter[str]:
    """Operators of a model, those in bodies and functions included."""
    return Counter(node.op_type for root in (proto.graph, *proto.functions) for node in nodes(root))


def from_onnx(
    model: Source,
    shape_dict: dict[str, list[Any]] | None = None,
    dtype_dict: str | dict[str, str] | None = "float32",
    opset: int | None = None,
    keep_params_in_input: bool = False,
    sanitize_input_names: bool = True,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | Sequence[str] = (),
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    prefix_masks: PrefixMasks = (),
    strict: bool = False,
    rules: Sequence[Phase] | None = None,
    on_form: Hear | None = None,
) -> tvm.IRModule:
    """Converts a model into a Relax module: a drop-in for `tvm.relax.frontend.onnx.from_onnx`.

    The parameters up to `sanitize_input_names` are TVM's; the others are those of `rewrite`, which
    runs first where the model has control flow, something is asserted, or rules are given. What the
    result relies on is logged as warnings of the logger "looplift". `on_form` is told what
    became of every loop and recurrence: one kernel, or a tower of functions and why. Raises
    UnsupportedError listing everything that cannot be converted.
    """
    from .lowering.emit import emit

    proto, base_dir = load(model)
    asked = rules is not None or any((inputs, dims, shapes, prefix_masks))
    if asked or not CONTROL_FLOW.isdisjoint(count_operators(proto)):
        result = rewrite(
            model,
            inputs=inputs,
            dims=dims,
            shapes=shapes,
            prefix_masks=prefix_masks,
            strict=strict,
            rules=rules,
        )
        proto = result.model
        for warning in (*result.report.notes, *result.report.defects):
            _log.warning("%s", warning)
    return emit(
        proto,
        shape_dict=shape_dict,
        dtype_dict=dtype_dict,
        opset=opset,
        keep_params_in_input=keep_params_in_input,
        sanitize_input_names=sanitize_input_names,
        base_dir=base_dir,
        on_form=on_form,
    )


def compile(  # noqa: A001  (called as `looplift.compile`, like `tvm.compile`)
    module: tvm.IRModule, target: str | dict[str, Any] | tvm.target.Target = "llvm"
) -> tvm.relax.VMExecutable:
    """Compiles a Relax module: `tvm.compile` with fused and scheduled kernels.

    `target` is what TVM takes, or `"native"` for the processor this runs on with all its
    instructions. The same is `tvm.compile(module, target, relax_pipeline="looplift")`. Raises
    UnsupportedError if TVM cannot compile the module.
    """
    from .lowering.compile import compile_module

    return compile_module(module, target)
