"""Parallel loops run on the worker threads of their module; results are the same for any number."""

from __future__ import annotations

import gc
import math
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

import looplift
from looplift.lowering.scheduling.codegen import thread_pool
from looplift.lowering.scheduling.codegen.compaction import COMPACTED
from looplift.lowering.scheduling.codegen.shared_bodies import FAIL

from ....samples import one_of
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

TWO_LOOPS = """g (float[n, 256] x, float[h, 64, 64] z) => (float[n, 512] y, float[h, 64, 64] s) {
    y = MatMul (x, w) s = Softmax (z) }"""
SIZES = ((0, 0), (1, 1), (7, 3), (1000, 96))
THREADS = Path("/proc/self/task")

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the pool is for Linux")
needs_two_cores = pytest.mark.skipif(
    sys.platform == "linux" and len(os.sched_getaffinity(0)) < 2, reason="needs two cores"
)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Sets what `runtime.NumThreads` returns.

    A module keeps the function that it finds in its first run: tests compile a module of their own.
    """
    count = 1
    own = tvm.get_global_func("runtime.NumThreads")

    def set_count(value: int) -> None:
        nonlocal count
        count = value

    tvm.register_global_func("runtime.NumThreads", lambda: count, override=True)
    yield set_count
    tvm.register_global_func("runtime.NumThreads", own, override=True)


def _model() -> Any:
    model = parse(TWO_LOOPS)
    weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def _inputs(rows: int, heads: int) -> list[Any]:
    rng = np.random.default_rng(rows)
    shapes = ((rows, 256), (heads, 64, 64))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _run(machine: Any, inputs: list[Any]) -> list[Any]:
    return [value.numpy() for value in machine["main"](*map(tvm.runtime.tensor, inputs))]


def _source(executable: Any, kind: str) -> str:
    (library,) = (part for part in executable.mod.imports if part.kind == "llvm")
    return str(library.inspect_source(kind))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_results_do_not_depend_on_threads(count: int, set_threads: Callable[[int], None]) -> None:
    set_threads(count)
    model = _model()
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in SIZES:
        x, z = _inputs(*sizes)
        wanted = session.run(None, {"x": x, "z": z})
        for _ in range(20):
            for value, expected, largest in zip(
                _run(machine, [x, z]), wanted, (5e-5, 1e-6), strict=True
            ):
                np.testing.assert_allclose(value, expected, rtol=0, atol=largest)


def test_the_number_of_threads_may_change(set_threads: Callable[[int], None]) -> None:
    set_threads(1)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(_model()), NATIVE))
    inputs = _inputs(1000, 96)
    wanted = _run(machine, inputs)
    for count in (3, 1, 6, 2):
        set_threads(count)
        for value, expected in zip(_run(machine, inputs), wanted, strict=True):
            np.testing.assert_array_equal(value, expected)


def test_several_callers_share_the_threads_of_a_module(
    set_threads: Callable[[int], None],
) -> None:
    set_threads(4)
    executable = looplift.compile(looplift.from_onnx(_model()), NATIVE)
    kernels = executable.jit()
    inputs, nothing = _inputs(600, 48), _inputs(0, 0)
    wanted = _run(tvm.relax.VirtualMachine(kernels, tvm.cpu()), inputs)
    wrong: list[int] = []

    def call() -> None:
        machine = tvm.relax.VirtualMachine(kernels, tvm.cpu())
        for number in range(30):
            results = _run(machine, inputs)
            if not all(map(np.array_equal, results, wanted)):
                wrong.append(number)
            _run(machine, nothing)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@needs_linux
def test_threads_end_with_their_module(set_threads: Callable[[int], None]) -> None:
    set_threads(4)
    gc.collect()
    before = len(list(THREADS.iterdir()))
    executable = looplift.compile(looplift.from_onnx(_model()), NATIVE)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    assert len(list(THREADS.iterdir())) == before
    _run(machine, _inputs(1000, 96))
    assert len(list(THREADS.iterdir())) == before + 3
    del machine, executable
    gc.collect()
    assert len(list(THREADS.iterdir())) == before


@needs_linux
def test_a_library_brings_its_threads(tmp_path: Path, set_threads: Callable[[int], None]) -> None:
    set_threads(4)
    executable = looplift.compile(looplift.from_onnx(_model()), NATIVE)
    inputs = _inputs(1000, 96)
    wanted = _run(virtual_machine(executable), inputs)
    path = str(tmp_path / "model.so")
    executable.export_library(path)
    del executable
    gc.collect()
    before = len(list(THREADS.iterdir()))
    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    for value, expected in zip(_run(machine, inputs), wanted, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert len(list(THREADS.iterdir())) == before + 3


@needs_linux
@needs_two_cores
def test_workers_stay_off_the_core_of_the_caller(set_threads: Callable[[int], None]) -> None:
    set_threads(3)
    before = set(THREADS.iterdir())
    executable = looplift.compile(looplift.from_onnx(_model()), NATIVE)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    _run(machine, _inputs(1000, 96))
    own = os.sched_getaffinity(0)
    workers = [int(path.name) for path in set(THREADS.iterdir()) - before]
    assert len(workers) == 2
    for worker in workers:
        allowed = os.sched_getaffinity(worker)
        assert allowed < own
        assert len(allowed) == len(own) - 1


@needs_linux
@needs_two_cores
def test_a_process_on_one_core_works_alone(set_threads: Callable[[int], None]) -> None:
    set_threads(3)
    own = os.sched_getaffinity(0)
    before = len(list(THREADS.iterdir()))
    executable = looplift.compile(looplift.from_onnx(_model()), NATIVE)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    inputs = _inputs(1000, 96)
    try:
        os.sched_setaffinity(0, {min(own)})
        alone = _run(machine, inputs)
        assert len(list(THREADS.iterdir())) == before
    finally:
        os.sched_setaffinity(0, own)
    together = _run(machine, inputs)
    assert len(list(THREADS.iterdir())) == before + 2
    for value, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(value, expected)


@needs_linux
def test_a_forked_process_has_workers_of_its_own() -> None:
    """It must not wait for those of its parent, not even at its end, nor change their affinity."""
    code = """
        import gc, os, warnings
        import numpy as np, tvm
        from onnx import parser
        import looplift

        tvm.register_global_func("runtime.NumThreads", lambda: 3, override=True)
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64, 64] x) => (float[n, 64, 64] y) {y = Softmax (x)}'
        module = looplift.from_onnx(parser.parse_model(text))
        machine = tvm.relax.VirtualMachine(looplift.compile(module), tvm.cpu())
        x = tvm.runtime.tensor(np.random.default_rng(0).random((96, 64, 64), np.float32))
        wanted = machine["main"](x).numpy()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            own = os.sched_getaffinity(0)
            same = all(np.array_equal(machine["main"](x).numpy(), wanted) for _ in range(99))
            threads = len(os.listdir("/proc/self/task"))
            stays = os.sched_getaffinity(0) == own
            del machine
            gc.collect()
            os._exit(0 if same and stays and threads == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(machine["main"](x).numpy(), wanted)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_all_parallel_loops_of_a_model_use_the_threads() -> None:
    code = _source(looplift.compile(looplift.from_onnx(_model()), "native"), "ll")
    launching = len(re.findall(r"call i32 [%@]\w+\(ptr nonnull @__tvm_parallel_lambda", code))
    assert launching >= 2
    assert code.count("store atomic ptr @looplift_launch, ") == launching
    assert len(re.findall(r"^@looplift\.slots = ", code, re.MULTILINE)) == 1


def test_a_model_without_parallel_loops_has_no_threads() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert "looplift" not in _source(looplift.compile(looplift.from_onnx(model), "native"), "ll")


def test_kernels_of_other_pipelines_stay_as_they_are() -> None:
    with IRBuilder() as builder, ib.prim_func():
        ib.func_attr({"global_symbol": "fill"})
        memory = ib.arg("memory", ib.buffer((8,), "float32"))
        with ib.parallel(8) as item:
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])
    library = tvm.compile(tvm.IRModule({"fill": builder.get()}), "llvm").mod
    code = library.inspect_source("ll")
    assert "__tvm_parallel_lambda" in code
    assert "looplift" not in code


def _kernel(body: Callable[[Any, Any], None]) -> Any:
    """A kernel of 64 elements and a number, as looplift's pipeline compiles it."""
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main"})
        memory = ib.arg("memory", ib.buffer((64,), "float32"))
        number = ib.arg("number", ib.int64())
        with ib.sblock("root"):
            body(memory, number)
    module = tvm.IRModule({"main": builder.get()}).with_attr(COMPACTED, True)
    return tvm.compile(module, "llvm")["main"]


def _zeros() -> Any:
    return tvm.runtime.tensor(np.zeros(64, np.float32))


def test_an_exception_within_a_part_reaches_the_caller(
    set_threads: Callable[[int], None],
) -> None:
    """A scratch buffer of 2**60 elements cannot be allocated.

    TVM throws an exception of C++, which would end the process on a worker, so there is none.
    """
    set_threads(1)

    def fill(memory: Any, size: Any) -> None:
        with ib.parallel(64) as item, ib.sblock("part"):
            scratch = ib.alloc_buffer((size,), "float32")
            ib.buffer_store(scratch, tirx.const(1.0, "float32"), [0])
            ib.buffer_store(memory, scratch[0], [item])

    kernel, memory = _kernel(fill), _zeros()
    kernel(memory, 16)
    np.testing.assert_array_equal(memory.numpy(), 1)
    with pytest.raises(Exception, match=r"memory|alloc"):
        kernel(memory, 1 << 60)


def test_the_error_of_a_worker_reaches_the_caller(set_threads: Callable[[int], None]) -> None:
    set_threads(4)

    def check(memory: Any, number: Any) -> None:
        part = ib.sblock("part")
        with ib.parallel(64) as item, part, ib.Assert(item != number, "the item is the number"):
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])

    kernel = _kernel(check)
    for _ in range(20):
        for number in (0, 31, 63):
            with pytest.raises(Exception, match="the item is the number"):
                kernel(_zeros(), number)
    memory = _zeros()
    kernel(memory, 64)
    np.testing.assert_array_equal(memory.numpy(), 1)


def test_a_part_that_fails_only_once_is_an_error(set_threads: Callable[[int], None]) -> None:
    set_threads(4)

    def fail_once(memory: Any, number: Any) -> None:
        with ib.parallel(64) as item, ib.sblock("part"):
            is_first = tirx.all(item == number, memory[item] == tirx.const(0.0, "float32"))
            with ib.If(is_first), ib.Then():
                ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])
                ib.evaluate(FAIL.value)

    kernel = _kernel(fail_once)
    with pytest.raises(Exception, match="failed in a part of the loop"):
        kernel(_zeros(), 63)
    kernel(_zeros(), 64)


@pytest.mark.parametrize("number", [64, 1, 0])
def test_loops_that_call_packed_functions(number: int, set_threads: Callable[[int], None]) -> None:
    """Each item runs once, whatever loop came before."""
    set_threads(4)
    seen: list[int] = []
    tvm.register_global_func("looplift.test.note", lambda item: seen.append(int(item)))

    def two_loops(memory: Any, number: Any) -> None:
        with ib.parallel(number) as item, ib.sblock("first"):
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])
        with ib.parallel(64) as item, ib.sblock("second"):
            ib.evaluate(tirx.call_packed("looplift.test.note", item))
            ib.buffer_store(memory, memory[item] + tirx.const(5.0, "float32"), [item])

    memory = _zeros()
    try:
        _kernel(two_loops)(memory, number)
    finally:
        tvm_ffi.registry.remove_global_func("looplift.test.note")
    assert sorted(seen) == list(range(64))
    np.testing.assert_array_equal(memory.numpy(), 5.0 + (np.arange(64) < number))


@contextmanager
def _noting(note: Callable[[int], None]) -> Iterator[Any]:
    """A kernel whose parallel loop, of a number of items, calls `note` with each item."""

    def loop(memory: Any, number: Any) -> None:
        with ib.parallel(number) as item, ib.sblock("part"):
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])
            ib.evaluate(tirx.call_packed("looplift.test.note", item))

    tvm.register_global_func("looplift.test.note", note)
    try:
        yield _kernel(loop)
    finally:
        tvm_ffi.registry.remove_global_func("looplift.test.note")


@needs_linux
@needs_two_cores
@pytest.mark.parametrize("milliseconds", [0.3, 2.0, 5.0])
def test_a_loop_that_took_long_has_more_parts(
    milliseconds: float, set_threads: Callable[[int], None]
) -> None:
    """A worker takes parts from the back, but runs the items of a part from the front.

    It seems to lose its core while an item sleeps: so it leaves the launch before a tick, and joins
    it again.
    """
    set_threads(2)
    seen: list[tuple[int, int]] = []

    def note(item: int) -> None:
        seen.append((threading.get_ident(), int(item)))
        time.sleep(milliseconds / 1000)

    def last_items() -> list[int]:
        """The items that the worker ran, the last ones first."""
        seen.clear()
        kernel(_zeros(), 64)
        assert sorted(item for _, item in seen) == list(range(64))
        return [item for thread, item in seen if thread != threading.get_ident()]

    with _noting(note) as kernel:
        assert last_items()[:6] == [60, 61, 62, 63, 56, 57]
        assert last_items()[:6] == [63, 62, 61, 60, 59, 58]


@needs_linux
@pytest.mark.soak
def test_loops_with_almost_as_many_items_as_an_int32_counts(
    set_threads: Callable[[int], None],
) -> None:
    set_threads(2)
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main"})
        memory = ib.arg("memory", ib.buffer((64,), "float32"))
        number = ib.arg("number", ib.int32())
        part = ib.sblock("part")
        with ib.sblock("root"), ib.parallel(number) as item, part, ib.If(item < 64), ib.Then():
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])
    module = tvm.IRModule({"main": builder.get()}).with_attr(COMPACTED, True)
    kernel = tvm.compile(module, "llvm")["main"]
    memory = _zeros()
    kernel(memory, (1 << 31) - 1)
    np.testing.assert_array_equal(memory.numpy(), 1)


@needs_linux
def test_items_that_do_not_divide_into_equal_parts(set_threads: Callable[[int], None]) -> None:
    set_threads(5)
    seen: list[int] = []
    with _noting(lambda item: seen.append(int(item))) as kernel:
        for number in (1, 2, 39, 40, 41, 63):
            seen.clear()
            kernel(_zeros(), number)
            assert sorted(seen) == list(range(number))


@needs_linux
@needs_two_cores
def test_a_caller_that_waits_long_sleeps_until_its_worker_is_done(
    set_threads: Callable[[int], None],
) -> None:
    set_threads(2)
    caller = threading.get_ident()

    def note(item: int) -> None:
        time.sleep(0 if threading.get_ident() == caller else 0.03)

    waits = 0
    with _noting(note) as kernel:
        for _ in range(10):
            start, own_start = time.perf_counter(), time.thread_time()
            memory = _zeros()
            kernel(memory, 64)
            np.testing.assert_array_equal(memory.numpy(), 1)
            passed = time.perf_counter() - start
            if passed > 0.025:  # otherwise the worker came too late for any part
                waits += 1
                assert time.thread_time() - own_start < passed / 2
    assert waits


@pytest.mark.parametrize(
    ("triple", "system_call"),
    one_of(
        2,
        [
            ("x86_64-linux-gnu", "202"),
            ("amd64-linux-gnu", "202"),
            ("aarch64-linux-gnu", "98"),
            ("aarch64-linux-android", None),
            ("arm64-apple-darwin", None),
            ("x86_64-pc-windows-msvc", None),
            ("riscv64-linux-gnu", None),
        ],
    ),
)
def test_systems_with_a_pool(triple: str, system_call: str | None) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    code = _source(looplift.compile(looplift.from_onnx(_model()), target), "ll")
    assert "__tvm_parallel_lambda" in code
    if system_call is None:
        assert "looplift_launch" not in code
    else:
        assert f"@syscall(i64 {system_call}, " in code


def test_a_library_for_linking_uses_the_threads_of_tvm() -> None:
    """Two of them in one program would define the same functions."""
    with tvm.target.Target("llvm"):
        executable = tvm.relax.build(
            looplift.from_onnx(_model()),
            "llvm",
            relax_pipeline=tvm.relax.get_pipeline("looplift"),
            system_lib=True,
        )
    code = _source(executable, "ll")
    assert "TVMBackendParallelLaunch" in code
    assert "looplift_launch" not in code


class Worker:
    """The schedule of a worker that starts at 0, when the clock ticks. Times are in milliseconds."""

    def __init__(self, tick_length: float = 4.0) -> None:
        with IRBuilder() as builder, ib.prim_func():
            ib.func_name("trial")
            ib.func_attr({"global_symbol": "trial"})
            schedule = ib.arg("schedule", ib.buffer((6,), "int64"))
            answer = ib.arg("answer", ib.buffer((1,), "int64"))
            action = ib.arg("action", ib.int64())
            times = [ib.arg(f"time{number}", ib.int64()) for number in range(3)]
            with ib.attr(tirx.const(0), "pragma_import_llvm", ir.StringImm(thread_pool.TURNS)):
                for number, (name, count, result) in enumerate(
                    (
                        ("start_schedule", 3, "void"),
                        ("work_until", 2, "int64"),
                        ("tick_end", 0, "int64"),
                        ("next_turn", 2, "void"),
                        ("end_sleep", 3, "void"),
                    )
                ):
                    arguments = (schedule.data, *times[:count])
                    call = tirx.call_extern(result, f"looplift_{name}", *arguments)
                    with ib.If(action == number), ib.Then():
                        if result == "void":
                            ib.evaluate(call)
                        else:
                            ib.buffer_store(answer, call, [0])
        self._call = tvm.tirx.build(tvm.IRModule({"trial": builder.get()}), target="llvm")["trial"]
        self._schedule = tvm.runtime.tensor(np.zeros(6, np.int64))
        self._answer = tvm.runtime.tensor(np.zeros(1, np.int64))
        self._do(0, 0, 0, tick_length)

    def _do(self, action: int, *times: float) -> float:
        """The answer, if the action has one; infinity for the largest number."""
        numbers = [round(time * 1e6) for time in (*times, 0, 0, 0)][:3]
        self._call(self._schedule, self._answer, action, *numbers)
        answer = int(self._answer.numpy()[0])
        return math.inf if answer == np.iinfo(np.int64).max else answer / 1e6

    def work_until(self, now: float, own: float) -> float:
        return self._do(1, now, own)

    def tick_end(self) -> float:
        return self._do(2)

    def next_turn(self, now: float, own: float) -> None:
        self._do(3, now, own)

    def end_sleep(self, wake_time: float, now: float, own: float) -> None:
        self._do(4, wake_time, now, own)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_worker_alone_works_without_end(worker: Worker) -> None:
    assert worker.work_until(10, 10) == math.inf
    assert worker.work_until(20, 19.5) == math.inf  # half a millisecond is the system's


def test_a_worker_that_loses_its_core_works_between_ticks(worker: Worker) -> None:
    assert worker.work_until(8.1, 4) == 11.9
    assert worker.tick_end() == 12.1
    worker.next_turn(12.1, 8)
    assert worker.work_until(13, 8.9) == 15.9
    worker.next_turn(16.1, 12)  # The second tick, too, has passed without a loss.
    assert worker.work_until(17, 12.9) == math.inf


def test_a_worker_that_loses_its_core_at_ticks_goes_on_in_turns(worker: Worker) -> None:
    worker.work_until(8.1, 4)
    for turn in range(5):
        start = 16.1 + 8 * turn
        worker.next_turn(start, 8 + 4 * turn)
        assert worker.work_until(start, 8 + 4 * turn) == pytest.approx(start + 3.8)


@pytest.mark.parametrize(("length", "end"), [(1, 31.9), (4, 31.9), (10, 39.9), (1.4, 30.7)])
def test_a_turn_ends_before_the_first_tick_after_a_slice(length: float, end: float) -> None:
    """A slice of Linux's scheduler is 1.4 milliseconds on two cores."""
    assert Worker(length).work_until(30.1, 0) == pytest.approx(end)


def test_a_worker_that_wakes_late_shares_its_core(worker: Worker) -> None:
    worker.end_sleep(20, 20.2, 0)
    assert worker.work_until(20.3, 0.1) == math.inf
    worker.end_sleep(40, 41, 1)
    assert worker.work_until(41.1, 1.1) == 43.9


def test_a_worker_shares_its_core_again_if_it_did_recently(worker: Worker) -> None:
    worker.work_until(8.1, 4)
    for turn in range(2):
        worker.next_turn(12.1 + 4 * turn, 8 + 4 * turn)
    assert worker.work_until(17, 12.9) == math.inf
    worker.end_sleep(60, 60.1, 13)
    assert worker.work_until(60.2, 13.1) == 63.9
    for turn in range(2):
        worker.next_turn(64.1 + 4 * turn, 17 + 4 * turn)
    worker.end_sleep(300, 300.1, 30)  # It has been too long.
    assert worker.work_until(300.2, 30.1) == math.inf
