"""The public functions: rewrite a model, import it into TVM, compile it."""

from __future__ import annotations

import html
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from .keywords import errors_in_keywords, in_keywords, names_keywords
from .request import Request
from .rewrite.engine.engine import Engine, Observer
from .rewrite.engine.reasons import Reason, reasons_at
from .rewrite.engine.rule import ANY, Phase
from .rewrite.engine.trace import Listener, Trace
from .rewrite.errors import (
    AssumptionError,
    LoopliftError,
    MalformedNodeError,
    ModelError,
    UnsupportedError,
)
from .rewrite.facts.assertions import Assertions, Dims, PrefixMasks, Shapes
from .rewrite.garbage_collection import collector_paused
from .rewrite.graph.ir import CONTROL_FLOW, Node, Tensor
from .rewrite.storage.files import ModelSource, save
from .rewrite.storage.function_conflicts import after_difference, function_notes
from .rewrite.storage.in_memory import like
from .rewrite.storage.iteration_numbers import reshape_iteration_numbers
from .rewrite.storage.model import export_model, read_model
from .rewrite.storage.output_checks import check_not_source
from .rewrite.storage.redeclare import check_declarations
from .rewrite.storage.summary import (
    brief,
    changed_values,
    compare,
    count_operators,
    summarize,
)

if TYPE_CHECKING:
    import tvm

    from .lowering.forms import OnForm
    from .rewrite.running.verify import Verification

_log = logging.getLogger("looplift")
RELIES_ON = "The module relies on this: "
"""Begins what `from_onnx` logs of assertions and notes."""


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
    rules, such as that the program never needs a branch that always fails. Each sentence once."""
    defects: list[str]
    """Rules that raised an error, or whose patch failed its check and was undone."""
    seconds: float

    def __str__(self) -> str:
        lines = [f"{brief(self.before, self.after)} in {self.seconds:.2f} s"]
        lines += [f"{rule}: {times}" for rule, times in self.commits.most_common()]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"rule failed: {defect}" for defect in self.defects]
        return "\n".join(lines)

    def control(self, counts: Counter[str]) -> dict[str, int]:
        """The control-flow operators among some counts."""
        return {op: counts[op] for op in sorted(CONTROL_FLOW) if counts[op]}


@dataclass(repr=False)
class RewriteResult:
    """The rewritten model and how it came about."""

    model: Any
    """The rewritten model, of the type of the model given: an `onnx_ir.Model`, a
    `torch.onnx.ONNXProgram` or an `onnx_graphsurgeon.Graph`; a ModelProto for all others."""
    proto: onnx.ModelProto
    """The same as a ModelProto."""
    report: Report
    trace: Trace
    engine: Engine = field(repr=False)
    """The finished engine: its graph, the facts, the rules, the assertions."""
    request: Request = field(repr=False)
    """What was asked for, with the original model."""
    base_dir: str = ""
    """The folder that external data of the model is relative to."""
    source: Path | None = None
    """The file that the model was read from; None for a model in memory."""
    verification: Verification | None = None
    """What `verify` compared last; None if nothing was compared yet."""

    @names_keywords
    def verify(
        self,
        *,
        sizes: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
        seconds: float | None = None,
    ) -> Verification:
        """Runs the original and the rewritten model on onnxruntime and compares their outputs.

        The inputs are generated, within what was asserted, at several sizes. `str` of the result
        says what was compared: "equal in 8 runs (T=0|1|2|3|7|8)", and which runs are left out
        because onnxruntime crashes for the rewritten model. `verified` is whether at least one run
        was compared and none differed. `sizes` has the sizes to try for some open
        dimensions, such as `{"T": [1, 100]}`. `seconds` limits the time, by default two minutes.
        """
        from .rewrite.running.cases import limited_effort
        from .rewrite.running.verify import verify

        self.verification = verify(
            self.request.proto,
            self.proto,
            base_dir=self.base_dir,
            assumptions=self.engine.assertions,
            sizes=sizes,
            seed=seed,
            effort=limited_effort(seconds),
        )
        return self.verification

    def save(self, path: str | Path, *, overwrite_original: bool = False) -> None:
        """Writes the model, and its weights next to it where they are too large for one file.

        `overwrite_original` allows `path` to be the file that the model was read from. Raises
        ModelError if it is that without being allowed, or if the file cannot be written.
        """
        if self.source is not None and not overwrite_original:
            check_not_source(
                Path(path), self.source, "Write to another file, or pass overwrite_original=True"
            )
        save(self.proto, path, base_dir=self.base_dir)

    def __repr__(self) -> str:
        changes = brief(self.report.before, self.report.after)
        count = self.report.commits.total()
        return f"<RewriteResult: {changes}; {count} commit{'s' * (count != 1)}>"

    def _repr_html_(self) -> str:
        """The table of the command line, for notebooks."""
        before, after = summarize(self.request.proto), summarize(self.proto)
        rows = [
            *(("input", line, "") for line in changed_values(before.inputs, after.inputs)),
            *(("output", line, "") for line in changed_values(before.outputs, after.outputs)),
            ("", "before", "after"),
            *compare(before, after),
            *(("note", note, "") for note in self.report.notes),
        ]
        cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def reasons(self, node: Node) -> list[Reason]:
        """Why each rule that may match at a node of the rewritten graph does not fire there.

        `result.engine.index.walk()` gives the nodes.
        """
        return reasons_at(self.engine, node)


@names_keywords
def rewrite(
    model: ModelSource,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Dims = (),
    shapes: Shapes | None = None,
    prefix_masks: PrefixMasks = (),
    strict: bool = False,
    engine: str | None = None,
    rules: Sequence[Phase] | None = None,
    follow_links: bool = False,
    step_limit: int | None = None,
    on_event: Listener | None = None,
    observer: Observer | None = None,
    verify: bool = False,
) -> RewriteResult:
    """Rewrites a model into one that computes the same with less control flow.

    `model` is a path, the bytes of a file, an `onnx.ModelProto`, an `onnx_ir.Model`, a
    `torch.onnx.ONNXProgram` or an `onnx_graphsurgeon.Graph`. The `model` of the result has the same
    type, a ModelProto for a path or bytes; its `proto` is always a ModelProto.

    `inputs` gives graph inputs values: each becomes a constant and is no longer an input. `dims`
    asserts named dims, as a mapping or as texts such as `"T=16"` and `"T>=2"`; `shapes` asserts
    shapes of inputs (a number, a name, or None for an unknown dim). `prefix_masks` names inputs or
    values of the main graph, booleans or 0 and 1, that are true first and false from some time step
    on; it maps each to its time axis, which is the second axis, as in (batch, time), or the only
    axis where none is given. `strict` preserves errors: inputs on which the original fails still
    fail. `engine` names the inference engine that the result is for, such as `"openvino"`: rules
    then avoid forms that it refuses or computes wrongly. `rules` replaces the phases of looplift
    and of installed packages; `looplift.plugins.all_phases(["my_rules"])` are these and those of
    the module `my_rules`, as with `--rules my_rules` on the command line. `follow_links` reads
    external data through links that leave the folder of the model. `step_limit` stops after that
    many commits. `on_event` is called with every commit and defect, `observer` follows the rewrite
    from within. `verify` compares the result with the original on onnxruntime, as `looplift
    rewrite` does; `result.verification` says what was compared. Without it, nothing is run.

    The given model is not changed. Raises ModelError for a model that is not valid,
    AssumptionError for an assertion that does not fit, and a LoopliftError that names the rules if
    rules undo each other's work forever. With `verify`, raises VerificationError if the result
    differs from the original; it is in the error's `result`.

    >>> import looplift, onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[T, 3] x, bool flag) => (float[T, 3] y) {
    ...     y = If (flag) <then_branch = a () => (float[T, 3] p) { p = Exp(x) },
    ...                    else_branch = b () => (float[T, 3] q) { q = Neg(x) }> }''')
    >>> result = looplift.rewrite(model, inputs={"flag": True}, verify=True)
    >>> result
    <RewriteResult: nodes 3 → 1, If 1 → 0; 1 commit>
    >>> print(*result.report.notes)
    input `flag` is True
    """
    with errors_in_keywords():
        request = Request.of(
            model,
            Assertions.of(inputs, dims, shapes, prefix_masks),
            strict=strict,
            engine=engine,
            phases=rules,
            follows_links=follow_links,
        )
        result = rewrite_request(
            request, step_limit=step_limit, on_event=on_event, observer=observer
        )
    result.model = like(model, result.proto, result.base_dir)
    result.source = Path(model) if isinstance(model, str | os.PathLike) else None
    result.report.notes = [in_keywords(note) for note in result.report.notes]
    if verify and result.verify().differences:
        raise VerificationError(result)
    return result


class VerificationError(LoopliftError):
    """The rewritten model computes something else than the original."""

    def __init__(self, result: RewriteResult) -> None:
        super().__init__(
            f"The rewritten model differs from the original: {result.verification}",
            remedy=after_difference(result.request.proto),
        )
        self.result = result
        """The rewritten model and how it came about."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.result,)


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
    if request.options.engine.reshapes_iteration_numbers:
        reshape_iteration_numbers(result)
    trace = engine.trace
    report = Report(
        before=count_operators(request.proto),
        after=count_operators(result),
        commits=Counter(commit.rule for commit in trace.commits()),
        notes=engine.assertions.notes() + function_notes(request.proto) + trace.notes(),
        defects=list(map(str, trace.defects())),
        seconds=time.perf_counter() - started,
    )
    return RewriteResult(result, result, report, trace, engine, request, request.base_dir)


@names_keywords
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
    engine: str | None = None,
    rules: Sequence[Phase] | None = None,
    follow_links: bool = False,
    on_form: OnForm | None = None,
) -> tvm.IRModule:
    """Converts a model into a Relax module: a drop-in for `tvm.relax.frontend.onnx.from_onnx`.

    The parameters up to `sanitize_input_names` are those of TVM; the others are those of `rewrite`,
    which runs first, on the inputs as `shape_dict` and `dtype_dict` declare them. As in TVM, names
    there that are no inputs have no effect, but the log names them. The parameters that
    `keep_params_in_input` asks for keep their names and shapes; those that decide shapes or control
    flow keep their values, too, as in TVM. `on_form` is called for every loop
    and recurrence with the form that it takes when compiled, a kernel or functions, and why.

    The logger "looplift" warns of everything that the result relies on, and of a model that cannot
    be rewritten, which is imported as it is if nothing is asserted, no rules are given, and each
    node has what its operator needs.

    Raises what `rewrite` raises, and UnsupportedError listing everything that cannot be converted.
    Both can be caught as the ValueError, TypeError or OpNotImplemented that TVM's importer raises.
    """
    with errors_in_keywords():
        request = Request.of(
            model,
            Assertions.of(inputs, dims, shapes, prefix_masks),
            strict=strict,
            engine=engine,
            phases=rules,
            follows_links=follow_links,
        )
        return import_request(
            request,
            needs_rewrite=rules is not None,
            shape_dict={} if shape_dict is None else shape_dict,
            dtype_dict=dtype_dict,
            opset=opset,
            keep_params_in_input=keep_params_in_input,
            wording=in_keywords,
            sanitize_input_names=sanitize_input_names,
            on_form=on_form,
        )


def import_request(
    request: Request,
    *,
    needs_rewrite: bool = False,
    wording: Callable[[str], str] = str,
    **arguments: Any,
) -> tvm.IRModule:
    """Does what `from_onnx` does, for a request; `arguments` are those of `ImportOptions`.

    `wording` is applied to warnings, which name options of the command line. Raises the error of a
    rewrite that fails if that is needed, or if anything is asserted.
    """
    from .lowering.emit import ImportOptions, emit_graph, prepare, warn_of_defects
    from .lowering.support import UnknownOperatorError

    given = ImportOptions(**arguments, base_dir=request.base_dir)
    warn_of_defects(request.proto)
    original = request.proto
    check_declarations(original, given.shape_dict, given.dtypes)
    proto, weights = prepare(original, given)
    request = replace(request, proto=proto)
    options = replace(given, shape_dict=_expressions(given.shape_dict, request.assertions))
    try:
        engine, ranks, declined = _rewritten(request, wording)
    except Exception as error:  # any rule of any package may fail
        if needs_rewrite or request.assertions or isinstance(error, MalformedNodeError):
            raise
        failure = error
    else:
        try:
            return emit_graph(
                engine.model,
                options,
                original,
                weights=weights,
                sizes=engine.assertions.dims,
                ranks=ranks,
                declined=declined,
                facts=engine.facts,
            )
        except UnknownOperatorError as error:
            if not request.options.engine.has_contrib_operators:
                raise
            name = request.options.engine.name
            own = f"Operators that only {name} has stay in a model for {name}: import it for TVM"
            raise UnknownOperatorError(
                error.what, where=error.where, remedy=f"{own}. {error.remedy}"
            ) from None
    try:
        module = emit_graph(read_model(proto, request.base_dir), options, original, weights=weights)
    except (LookupError, AttributeError, AssertionError):
        # A model that is not valid ends here, too; the rewrite says better what is wrong.
        raise failure from None
    except UnsupportedError:
        if isinstance(failure, ModelError):
            raise failure from None
        raise
    _log.warning("The model is imported as it is, because it cannot be rewritten: %s", failure)
    return module


@collector_paused()
def _rewritten(
    request: Request, wording: Callable[[str], str]
) -> tuple[Engine, Mapping[Tensor, str], Mapping[str, str]]:
    """The engine with the rewritten model, why the ranks of values are not known, and why operators
    without a converter were not decomposed, by their first output.
    """
    from .lowering.operators import find
    from .lowering.quantised_products import multiply_integers
    from .lowering.tail_duplication import duplicate_tails
    from .rules.recurrence.emission import ABOUT_ONNXRUNTIME

    engine = request.engine()
    engine.run()
    trace = engine.trace
    declined = {
        node.outputs[0].name: reason.sentence
        for node in engine.index.walk()
        if node.outputs and find(node.domain, node.op) is None
        for reason in reasons_at(engine, node)
        if ANY not in reason.kind.roots()
    }
    # What onnxruntime does with a form does not matter: TVM runs the module.
    notes = (note for note in trace.notes() if not note.startswith(ABOUT_ONNXRUNTIME))
    for warning in (*engine.assertions.notes(), *notes):
        _log.warning("%s%s", RELIES_ON, wording(warning))
    products = multiply_integers(engine)
    final, ranks = duplicate_tails(products)
    traces = (trace, products.trace, final.trace)
    for defect in dict.fromkeys(defect for each in traces for defect in each.defects()):
        _log.warning("%s", defect)
    return final, ranks, declined


def _expressions(
    shape_dict: Mapping[str, Sequence[Any]], assertions: Assertions
) -> dict[str, Sequence[Any]]:
    """The shapes with expressions of TVM, which ONNX cannot declare.

    Raises AssumptionError for one that `shapes` also asserts.
    """
    found = {
        name: shape
        for name, shape in shape_dict.items()
        if not all(size is None or isinstance(size, int | str) for size in shape)
    }
    for name in found.keys() & assertions.shapes.keys():
        raise AssumptionError(
            f"The shape of input '{name}' is given twice, in shape_dict and in shapes",
            remedy="Assert it once",
        )
    return found


def compile(  # noqa: A001  (called as `looplift.compile`, like `tvm.compile`)
    module: tvm.IRModule, target: str | dict[str, Any] | tvm.target.Target = "llvm"
) -> tvm.relax.VMExecutable:
    """Compiles a Relax module: `tvm.compile` with fused and scheduled kernels.

    `target` is what TVM takes, or `"native"` for the processor of this machine with all its
    instructions. After `import looplift.transform`, `tvm.compile(module, target,
    relax_pipeline="looplift")` does the same for a target of TVM. Raises UnsupportedError if TVM
    cannot compile the module.
    """
    from .lowering.compile import compile_module

    return compile_module(module, target)
