"""Relax modules for the commands: built from a file, compiled, run, written.

TVM is imported when a function is called, so that everything else works without it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ..api import compile, from_onnx  # noqa: A004
from ..commands.arguments import Assertions
from ..plugins import all_phases
from ..rewrite.errors import LoopliftError, ModelError, UnsupportedError, summary_line
from ..rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from ..rewrite.running.runtime import (
    Array,
    ExecutionError,
    Isolated,
    ProcessCrashed,
    RuntimeValue,
    SerializedModel,
    median_time,
)

if TYPE_CHECKING:
    from ..lowering.forms import Form

FORMATS = (".py", ".json", ".so")


def check_format(output: Path) -> None:
    """Raises ModelError for a file name that does not say what to write."""
    if output.suffix not in FORMATS:
        raise ModelError(
            f"'{output.suffix}' is nothing a module can be written as",
            where=f"file '{output}'",
            remedy="End the name with .py, .json or .so",
        )


KERNEL, TOWER = "kernel", "tower"


@dataclass(frozen=True)
class Loop:
    """A node that iterates, and what became of it in the module."""

    operator: str
    place: str
    form: str
    """One kernel with the loop inside, or a tower of functions that the virtual machine runs."""
    reason: str
    """Why it is a tower; empty for a kernel."""


@dataclass
class Remarks:
    """What a module consists of, and what was said while it was made."""

    loops: list[Loop]
    operators: dict[str, int]
    """Relax operators in all functions of the module, the most frequent first."""
    notes: list[str]
    """What the module relies on beyond the file."""
    warnings: list[str]
    """TVM's warnings."""


def write_module(
    source: Path, output: Path, target: str, assertions: Assertions, rules: Sequence[str] = ()
) -> Remarks:
    """Convert a model and write the module as text, as JSON, or compiled. `rules` are modules.

    Raises what `from_onnx` raises, UnsupportedError if TVM cannot compile or write the module,
    and ModelError if the file cannot be written. The file is written whole or not at all.
    """
    try:
        folder = output.absolute().parent
        with tempfile.TemporaryDirectory(dir=folder, prefix=".looplift-") as beside:
            written = Path(beside) / output.name
            remarks = _write_elsewhere(source, written, target, assertions, rules)
            written.replace(output)
    except OSError as error:
        raise ModelError(
            f"The module cannot be written: {error.strerror or error}",
            where=f"file '{output}'",
            remedy="Check the permissions of the folder and the space left on the disk",
        ) from error
    return remarks


def _write_elsewhere(
    source: Path, output: Path, target: str, assertions: Assertions, rules: Sequence[str]
) -> Remarks:
    with ChildProcess() as process:
        try:
            remarks: Remarks = RemoteObject(process, _Writer).call(
                "write", source, output, target, assertions, rules
            )
        except ChildDied as death:
            raise UnsupportedError(
                f"TVM does not survive writing the module: {death}",
                where=f"file '{output.name}'",
                remedy=_JSON_REMEDY if output.suffix == ".json" else "Please report the model",
            ) from None
    return remarks


_JSON_REMEDY = (
    "apache-tvm-ffi 0.1.15 cannot write modules as JSON; "
    'install an older one: pip install "apache-tvm-ffi<0.1.15"'
)


class _Writer:
    """The part of `write_module` that needs TVM."""

    def write(
        self,
        source: Path,
        output: Path,
        target: str,
        assertions: Assertions,
        rules: Sequence[str],
    ) -> Remarks:
        said = _Said()
        loops: list[Loop] = []
        log = logging.getLogger("looplift")
        log.addHandler(said)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module = from_onnx(
                    source,
                    inputs=assertions.inputs,
                    dims=assertions.dims,
                    shapes=assertions.shapes,
                    prefix_masks=assertions.prefix_masks,
                    strict=assertions.strict,
                    rules=all_phases(rules) if rules else None,
                    on_form=lambda form: loops.append(_loop(form)),
                )
        finally:
            log.removeHandler(said)
        _write(module, output, target)
        operators = dict(_counts(module).most_common())
        operators.pop("If", None)  # most of them belong to towers
        said_by_tvm = list(dict.fromkeys(str(w.message) for w in caught))
        return Remarks(loops, operators, said.notes, said_by_tvm)


def _loop(form: Form) -> Loop:
    return Loop(form.op_type, form.place, KERNEL if form.is_kernel else TOWER, form.reason)


class _Said(logging.Handler):
    """Keeps what `from_onnx` logs; the process that converts shows nobody its log."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.notes.append(record.getMessage())


def _write(module: Any, path: Path, target: str) -> None:
    if path.suffix == ".py":
        path.write_text(module.script(show_meta=False) + "\n", encoding="utf-8")
    elif path.suffix == ".json":
        import tvm

        path.write_text(tvm.ir.save_json(module), encoding="utf-8")
    else:
        compile(module, target).export_library(str(path))


class RelaxRunner:
    """A model on TVM, made from its plain ONNX form, in the process this is called in.

    `threads` takes effect if TVM was not used in this process before. Raises `ExecutionError` if
    TVM is missing or does not take the model.
    """

    def __init__(self, packed: SerializedModel, threads: int = 1) -> None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
        proto = _read(packed)
        try:
            self._counts, self._machine = _load(proto, packed.folder)
        except LoopliftError as error:
            raise ExecutionError(str(error)) from error
        given = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [info.name for info in proto.graph.input if info.name not in given]
        self.outputs = [info.name for info in proto.graph.output]

    def counts(self) -> Counter[str]:
        """Operators of the module, and `If`s, in all its functions."""
        return self._counts

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        """The outputs in the order of the graph. Raises `ExecutionError` if the run fails.

        TVM cannot be stopped: keeping to `seconds` is left to who can end the process.
        """
        call = self._call(feed)
        try:
            results = call()
        except Exception as error:  # TVM raises built-in errors of all kinds.
            raise ExecutionError(summary_line(error)) from error
        several = len(self.outputs) > 1
        return [_from_tvm(result) for result in (results if several else [results])]

    def latency(self, feed: Mapping[str, RuntimeValue], seconds: float = 0.5) -> float:
        """The median time of one run in seconds, measured for about `seconds`."""
        return median_time(self._call(feed), seconds)

    def _call(self, feed: Mapping[str, RuntimeValue]) -> Any:
        arguments = [_to_tvm(feed[name]) for name in self.inputs]
        function = self._machine["main"]
        return lambda: function(*arguments)


class RelaxSession(Isolated):
    """A model on TVM in a child process.

    Raises `ExecutionError` if TVM is missing or does not take the model.
    """

    def __init__(self, packed: SerializedModel, process: ChildProcess) -> None:
        try:
            super().__init__(process, RelaxRunner, packed)
            self.operators: dict[str, int] = dict(self._ask("counts"))
        except ProcessCrashed as end:
            raise ProcessCrashed(f"TVM does not survive the model: {end}") from None


def _load(proto: onnx.ModelProto, folder: str) -> tuple[Counter[str], Any]:
    """The operators of a model's module, and the machine that runs it."""
    from ..lowering import emit
    from ..lowering.compile import NATIVE, as_target

    import tvm  # isort: skip
    from tvm import relax

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with as_target(NATIVE):
            module = emit(proto, base_dir=folder)
    return _counts(module), relax.VirtualMachine(compile(module, NATIVE), tvm.cpu())


def _read(packed: SerializedModel) -> onnx.ModelProto:
    if isinstance(packed.source, bytes):
        proto = onnx.ModelProto()
        proto.ParseFromString(packed.source)
        return proto
    return onnx.load(packed.source, load_external_data=False)


def _counts(module: Any) -> Counter[str]:
    from tvm import ir, relax

    found: Counter[str] = Counter()

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.If):
            found["If"] += 1
        if isinstance(expression, relax.Call) and isinstance(expression.op, ir.Op):
            found[expression.op.name] += 1

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found


def _to_tvm(value: RuntimeValue) -> Any:
    import tvm

    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(np.ascontiguousarray(value).reshape(value.shape))
    if isinstance(value, list):
        return [_to_tvm(element) for element in value]
    raise ExecutionError(f"TVM has no {'empty optional' if value is None else 'map'}")


def _from_tvm(value: Any) -> RuntimeValue:
    if hasattr(value, "numpy"):
        array: Array = value.numpy()
        return array
    if value is None:
        return None
    return [_from_tvm(element) for element in value]
