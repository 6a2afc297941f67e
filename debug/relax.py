"""Relax modules for the commands: made from a file, compiled, run, written.

Functions import TVM when they are called, so that everything else works without it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api import RELIES_ON, compile, import_request  # noqa: A004
from ..request import Request, Settings
from ..rewrite.errors import LoopliftError, ModelError, UnsupportedError, summary_line
from ..rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from ..rewrite.running.runtime import (
    Array,
    ExecutionError,
    Isolated,
    ProcessCrashed,
    RuntimeValue,
    median_time,
)
from ..rewrite.storage.files import ModelSource
from ..rewrite.storage.output_files import cannot_be_written

if TYPE_CHECKING:
    from ..lowering.forms import Form

FORMATS = (".py", ".json", ".so")
KERNEL, FUNCTIONS = "kernel", "functions"


def check_format(output: Path, target: str | None) -> None:
    """Raises ModelError for a suffix that is no format of modules, and for an unused target."""
    if output.suffix not in FORMATS:
        raise ModelError(
            "The name of the file does not say the format of the module",
            where=f"file '{output}'",
            remedy="End the name with .py, .json or .so",
        )
    if target is not None and output.suffix != ".so":
        raise ModelError(
            f"A module written as {output.suffix} is not compiled: --target has no effect",
            where=f"file '{output}'",
            remedy="End the name with .so, or leave out --target",
        )


# --- modules that are written ---


@dataclass(frozen=True)
class LoopSummary:
    """A node that iterates, and its form in the module."""

    operator: str
    node: str
    form: str
    """`kernel` for one kernel with the loop inside, or `functions` for functions that the
    virtual machine runs."""
    reason: str
    """Why it is not a kernel; empty for a kernel."""


@dataclass
class ModuleSummary:
    """What a module consists of, and the messages about it."""

    loops: list[LoopSummary]
    operators: dict[str, int]
    """Relax operators in all functions of the module, the most frequent first."""
    notes: list[str]
    """What the module relies on beyond the file."""
    warnings: list[str]
    """The warnings of TVM."""


def write_module(source: Path, output: Path, target: str, settings: Settings) -> ModuleSummary:
    """Converts a model and writes the module as text, as JSON, or compiled.

    Raises what `from_onnx` raises, UnsupportedError if TVM cannot compile or write the module, and
    ModelError if the file cannot be written. The file is written whole or not at all.
    """
    try:
        folder = output.absolute().parent
        with tempfile.TemporaryDirectory(dir=folder, prefix=".looplift-") as temporary:
            written = Path(temporary) / output.name
            summary = _write_in_process(source, written, target, settings)
            written.replace(output)
    except OSError as error:
        raise cannot_be_written("The module", output, error) from error
    return summary


def _write_in_process(source: Path, output: Path, target: str, settings: Settings) -> ModuleSummary:
    """Writes the module in a child process. Raises OSError if LLVM or the linker cannot write."""
    with ChildProcess() as process:
        try:
            summary: ModuleSummary = RemoteObject(process, _Writer).call(
                "write", source, output, target, settings
            )
        except ChildDied as death:
            _, is_full, reason = str(death).partition(_LLVM_CANNOT_WRITE)
            if is_full:
                raise OSError(reason) from None
            raise UnsupportedError(
                f"TVM crashes while it writes the module: {death}",
                where=f"file '{output.name}'",
                remedy=_JSON_REMEDY if output.suffix == ".json" else "Please report the model",
            ) from None
    return summary


_LLVM_CANNOT_WRITE = "LLVM ERROR: IO failure on output stream: "
"""What LLVM says before it ends the process, because a disk is full."""
_LINKER_FAILS = "Compilation error:"
"""How TVM's error starts if the linker of the system fails."""
_LINKER_CANNOT_WRITE = ("No space left", "File too large", "Permission denied")
"""What the linker says if it cannot write the library."""
_JSON_REMEDY = (
    "apache-tvm-ffi 0.1.15 cannot write modules as JSON; "
    'install an older one: pip install "apache-tvm-ffi<0.1.15"'
)


class _Writer:
    """The part of `write_module` that needs TVM, in a child process."""

    def write(self, source: Path, output: Path, target: str, settings: Settings) -> ModuleSummary:
        loops: list[LoopSummary] = []
        imported = _import(
            settings.request(source),
            needs_rewrite=bool(settings.rules),
            on_form=lambda form: loops.append(_loop(form)),
        )
        _write(imported.module, output, target)
        operators = dict(_operators(imported.module).most_common())
        operators.pop("If", None)  # most of them belong to loops
        return ModuleSummary(loops, operators, imported.notes, imported.warnings)


def _loop(form: Form) -> LoopSummary:
    return LoopSummary(
        form.op_type, form.place, KERNEL if form.is_kernel else FUNCTIONS, form.reason
    )


@dataclass
class _Imported:
    """A module, and the messages about it."""

    module: Any
    notes: list[str]
    """What `import_request` logs."""
    warnings: list[str]
    """The warnings of TVM."""


def _import(request: Request, **arguments: Any) -> _Imported:
    """What `import_request` makes of a request, for every command that needs a module."""
    messages = _Messages()
    log = logging.getLogger("looplift")
    log.addHandler(messages)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module = import_request(request, **arguments)
    finally:
        log.removeHandler(messages)
    tvm_warnings = list(dict.fromkeys(str(warning.message) for warning in caught))
    return _Imported(module, messages.texts, tvm_warnings)


class _Messages(logging.Handler):
    """Collects what `import_request` logs, because the child process has no visible log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage().removeprefix(RELIES_ON))


def _write(module: Any, path: Path, target: str) -> None:
    if path.suffix == ".py":
        path.write_text(module.script(show_meta=False) + "\n", encoding="utf-8")
    elif path.suffix == ".json":
        import tvm

        path.write_text(tvm.ir.save_json(module), encoding="utf-8")
    else:
        executable = compile(module, target)
        try:
            executable.export_library(str(path))
        except RuntimeError as error:
            _, is_linker, output = str(error).partition(_LINKER_FAILS)
            if not is_linker:
                raise
            if any(words in output for words in _LINKER_CANNOT_WRITE):
                raise OSError(summary_line(RuntimeError(output))) from error
            raise _linker_failure(summary_line(RuntimeError(output))) from error
        except FileNotFoundError as error:
            raise _linker_failure(str(error)) from error
        except TypeError as error:  # TVM starts the compiler that it has not found.
            from tvm.support import cc

            if cc.get_cc() is not None:
                raise
            raise _linker_failure("there is no C++ compiler") from error


def _linker_failure(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"The library cannot be linked: {reason}",
        remedy="Set the environment variable CXX to a C++ compiler for the target",
    )


# --- modules that are run ---


class RelaxRunner:
    """A model, imported and compiled as `settings` say, in this process.

    `threads` takes effect only if this process has not used TVM before. Raises `ExecutionError` if
    TVM is missing or cannot convert or compile the model.
    """

    def __init__(self, source: ModelSource, settings: Settings, threads: int = 1) -> None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
        # TVM binds its threads to the first cores, which parallel processes would share.
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        try:
            request = settings.request(source)
            module, self._machine = _load(request)
        except LoopliftError as error:
            raise ExecutionError(str(error)) from error
        self._operators = _operators(module)
        self.inputs = [str(variable.name) for variable in module["main"].params]
        self.outputs = [info.name for info in request.proto.graph.output]

    def operators(self) -> Counter[str]:
        """Operators and `If`s in all functions of the module."""
        return self._operators

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        """The outputs in the order of the graph. Raises `ExecutionError` if the run fails.

        TVM cannot be stopped: the caller, who can end the process, enforces `seconds`.
        """
        call = self._call(feed)
        try:
            results = call()
        except Exception as error:  # TVM raises built-in errors of all kinds.
            raise ExecutionError(summary_line(error)) from error
        several = len(self.outputs) > 1
        return [_from_tvm(result) for result in (results if several else [results])]

    def latency(self, feed: Mapping[str, RuntimeValue], seconds: float = 0.5) -> float:
        """The median time of a run in seconds, measured for about `seconds`."""
        return median_time(self._call(feed), seconds)

    def _call(self, feed: Mapping[str, RuntimeValue]) -> Any:
        arguments = [_to_tvm(feed[name]) for name in self.inputs]
        function = self._machine["main"]
        return lambda: function(*arguments)


class RelaxSession(Isolated):
    """A `RelaxRunner` in a child process. Raises as that does."""

    def __init__(self, source: ModelSource, settings: Settings, process: ChildProcess) -> None:
        try:
            super().__init__(process, RelaxRunner, source, settings)
            self.operators: dict[str, int] = dict(self._ask("operators"))
        except ProcessCrashed as end:
            raise ProcessCrashed(f"TVM crashes: {end}") from None


def _load(request: Request) -> tuple[Any, Any]:
    """The module of a request, and the virtual machine that runs it."""
    from ..lowering.compile import NATIVE, as_target

    import tvm  # isort: skip
    from tvm import relax

    with as_target(NATIVE):
        imported = _import(request, needs_rewrite=True, sanitize_input_names=False)
    executable = compile(imported.module, NATIVE)
    return imported.module, relax.VirtualMachine(executable, tvm.cpu())


def _operators(module: Any) -> Counter[str]:
    """The operators that `main` reaches; a marked recurrence counts as one, without its body."""
    from tvm import ir, relax

    from ..lowering.operators.recurrent_mark import RecurrentOperator

    found: Counter[str] = Counter()
    pending = [module.get_global_var("main")]
    reached = set(pending)

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.If):
            found["If"] += 1
        elif isinstance(expression, relax.Call) and isinstance(expression.op, ir.Op):
            found[expression.op.name] += 1
        elif isinstance(expression, relax.Call) and isinstance(expression.op, ir.GlobalVar):
            mark = RecurrentOperator.of(module[expression.op])
            if mark is not None:
                found[mark.operator] += 1
        elif isinstance(expression, ir.GlobalVar) and expression not in reached:
            reached.add(expression)
            pending.append(expression)

    while pending:
        function = module[pending.pop()]
        if isinstance(function, relax.Function) and RecurrentOperator.of(function) is None:
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
