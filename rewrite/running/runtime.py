"""Runs models on onnxruntime: on the CPU, without log output, by default with one thread.

A runtime value is a numpy array, a list of values (a sequence), a dictionary (a map), or None (an
empty optional).
"""

from __future__ import annotations

import ctypes
import shutil
import statistics
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from ..storage.external import linked_data
from ..storage.files import load, save
from ..storage.limits import newest_ir
from .child_process import ChildDied, ChildProcess, RemoteObject, shared_process

Array = npt.NDArray[Any]
RuntimeValue = Array | list[Any] | dict[Any, Any] | None
Feed = dict[str, RuntimeValue]

LARGEST_MESSAGE = 2**31 - 1
"""Protobuf's limit for one message in bytes; a larger model keeps its weights in a second file."""

QUIET = 4
"""onnxruntime's log level that leaves only fatal errors."""


class ExecutionError(Exception):
    """onnxruntime rejects the model or these inputs; the text is that of onnxruntime."""


class ProcessCrashed(ExecutionError):
    """The run ended its process; the text says how."""


class SerializedModel:
    """A model in a form that onnxruntime reads and that can be sent to another process.

    `model` is a path or a ModelProto, whose external data is relative to `base_dir`. Raises
    ModelError if the file cannot be read.
    """

    def __init__(self, model: str | Path | onnx.ModelProto, base_dir: str = "") -> None:
        proto, self.folder = (
            (model, base_dir) if isinstance(model, onnx.ModelProto) else load(model)
        )
        linked = linked_data(proto, self.folder)
        if linked:
            self.folder = self._temporary_folder()
            for location, real in linked.items():  # onnxruntime also refuses hard links
                target = Path(self.folder, location)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(real, target)
        self.source: bytes | str = self._source(_readable(proto))
        """The serialized model, or its path if it is too large to serialize."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.source, self.folder)

    def _source(self, proto: onnx.ModelProto) -> bytes | str:
        if proto.ByteSize() <= LARGEST_MESSAGE:
            return bytes(proto.SerializeToString())
        path = Path(self._temporary_folder()) / "model.onnx"
        save(proto, path, base_dir=self.folder)
        return str(path)

    def _temporary_folder(self) -> str:
        """A folder that is deleted with this object, which must outlive its sessions."""
        folder = tempfile.mkdtemp(prefix="looplift-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder


def _unpacked(source: bytes | str, folder: str) -> SerializedModel:
    packed = SerializedModel.__new__(SerializedModel)
    packed.source, packed.folder = source, folder
    return packed


class Executable(Protocol):
    """Something that computes a model's outputs."""

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        """The outputs in the order of the graph; ignores values in `feed` for unknown inputs.

        Raises `ExecutionError` if the run fails or takes longer than `seconds`.
        """


class TimedExecutable(Executable, Protocol):
    """Something that computes a model's outputs and measures its latency."""

    def latency(self, feed: Mapping[str, RuntimeValue], seconds: float = 0.5) -> float:
        """The median time of one run in seconds, measured for about `seconds`."""


class LoadedModel(Executable, Protocol):
    """A model that onnxruntime has loaded."""

    inputs: dict[str, str]
    """The names and types of inputs; types as in onnxruntime: `tensor(float)`."""
    defaults: frozenset[str]
    """The inputs that have a default."""
    outputs: list[str]
    """The names of outputs."""
    not_vectors: frozenset[str]
    """The outputs that are not declared with exactly one axis."""


class Session:
    """A model on onnxruntime in this process.

    Raises `ExecutionError` if onnxruntime rejects the model.
    """

    def __init__(self, packed: SerializedModel, threads: int = 1, optimizes: bool = True) -> None:
        """`optimizes`: whether onnxruntime may change the graph before it runs it."""
        self._packed = packed
        options = _options(threads, packed.folder)
        if not optimizes:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        with _errors():
            self._session = ort.InferenceSession(
                packed.source, options, providers=["CPUExecutionProvider"]
            )
        self.inputs = {i.name: i.type for i in self._session.get_inputs()}
        self.defaults = frozenset(i.name for i in self._session.get_overridable_initializers())
        outputs = self._session.get_outputs()
        self.outputs = [o.name for o in outputs]
        self.not_vectors = frozenset(o.name for o in outputs if len(o.shape or ()) != 1)

    def interface(self) -> tuple[dict[str, str], frozenset[str], list[str], frozenset[str]]:
        """`inputs`, `defaults`, `outputs` and `not_vectors`."""
        return self.inputs, self.defaults, self.outputs, self.not_vectors

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        options = ort.RunOptions()
        options.log_severity_level = QUIET
        call = self._call(feed, options)
        if seconds is None:
            with _errors():
                return call()
        with _time_limit(options, seconds), _errors():
            return call()

    def latency(self, feed: Mapping[str, RuntimeValue], seconds: float = 0.5) -> float:
        call = self._call(feed, ort.RunOptions())
        with _errors():
            return median_time(call, seconds)

    def _call(
        self, feed: Mapping[str, RuntimeValue], options: Any
    ) -> Callable[[], list[RuntimeValue]]:
        known = {n: value for n, value in feed.items() if n in self.inputs or n in self.defaults}
        narrow = any("bfloat16" in o.type for o in self._session.get_outputs())
        if not narrow and not any(_is_bfloat16(value) for value in known.values()):
            return lambda: self._session.run(None, known, options)
        wrapped = {name: _to_ort(name, value) for name, value in known.items()}
        return lambda: [
            _from_ort(value) for value in self._session.run_with_ort_values(None, wrapped, options)
        ]


class Isolated:
    """A `TimedExecutable` in a child process, which a run may crash without harm to this process.

    `factory(*args)` creates it there. Raises `ProcessCrashed` if that crashes.
    """

    def __init__(
        self,
        process: ChildProcess,
        factory: Callable[..., TimedExecutable],
        *args: Any,
        seconds: float | None = None,
    ) -> None:
        try:
            self._remote = RemoteObject(process, factory, *args, seconds=seconds)
        except ChildDied as death:
            raise ProcessCrashed(str(death)) from None

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        outputs: list[RuntimeValue] = self._ask("run", dict(feed), seconds, seconds=seconds)
        return outputs

    def latency(self, feed: Mapping[str, RuntimeValue], seconds: float = 0.5) -> float:
        median: float = self._ask("latency", dict(feed), seconds)
        return median

    def close(self) -> None:
        """Drops the object in the child process."""
        self._remote.close()

    def _ask(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        try:
            return self._remote.call(method, *args, seconds=seconds)
        except ChildDied as death:
            raise ProcessCrashed(str(death)) from None


class IsolatedSession(Isolated):
    """A model on onnxruntime in a child process."""

    def __init__(
        self,
        packed: SerializedModel,
        threads: int = 1,
        process: ChildProcess | None = None,
        optimizes: bool = True,
        seconds: float | None = None,
    ) -> None:
        """`seconds` limits the time of loading, in which onnxruntime computes constants."""
        process = process or shared_process()
        super().__init__(process, Session, packed, threads, optimizes, seconds=seconds)
        self.inputs, self.defaults, self.outputs, self.not_vectors = self._ask("interface")


def median_time(call: Callable[[], object], seconds: float) -> float:
    """The median time of one call in seconds.

    Measures at least 5 calls after a warm-up call, then more for about `seconds`.
    """
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _readable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an IR version that onnxruntime accepts."""
    if proto.ir_version <= newest_ir():
        return proto
    older = onnx.ModelProto()
    older.CopyFrom(proto)
    older.ir_version = newest_ir()
    return older


def _options(threads: int, folder: str) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if folder:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
    return options


@contextmanager
def _errors() -> Any:
    """Converts onnxruntime's errors to `ExecutionError`.

    They are a dozen classes of its binding, which have only `Exception` in common.
    """
    try:
        yield
    except Exception as error:
        raise ExecutionError(str(error).strip() or type(error).__name__) from error


@contextmanager
def _time_limit(options: Any, seconds: float) -> Any:
    """Stops the run with these options after `seconds`, so that it fails."""

    def stop() -> None:
        options.terminate = True

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --- bfloat16, which onnxruntime's Python binding does not convert ---


def _is_bfloat16(value: RuntimeValue) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == ml_dtypes.bfloat16


def _to_ort(name: str, value: RuntimeValue) -> Any:
    if _is_bfloat16(value):
        bits = np.asarray(value, order="C").view(np.uint16)  # keeps the rank of a scalar
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    if isinstance(value, np.ndarray):
        return ort.OrtValue.ortvalue_from_numpy(value)
    raise ExecutionError(f"the input '{name}' cannot be passed together with bfloat16 tensors")


def _from_ort(value: Any) -> RuntimeValue:
    if not value.has_value():
        return None
    if not value.is_tensor():
        raise ExecutionError("a sequence cannot be read together with bfloat16 tensors")
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        array: Array = value.numpy()
        return array
    shape: Sequence[int] = value.shape()
    count = int(np.prod(shape))
    if count == 0:
        return np.zeros(shape, ml_dtypes.bfloat16)
    bits = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    copy: Array = np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)
    return copy
