"""Parallel loops run on one core for a while after launches that did not pay."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

import looplift
from looplift.lowering.scheduling.codegen import launches
from looplift.lowering.scheduling.codegen.compaction import COMPACTED

from ....samples import one_of
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

TWO_LOOPS = """g (float[n, 256] x, float[h, 64, 64] z) => (float[n, 512] y, float[h, 64, 64] s) {
    y = MatMul (x, w) s = Softmax (z) }"""

Trial = Callable[..., tuple[bool, bool]]


@pytest.fixture
def launched() -> Trial:
    """Reports a launch to the policy of a new module, and asks at two times whether to launch."""
    with IRBuilder() as builder, ib.prim_func():
        ib.func_name("trial")
        ib.func_attr({"global_symbol": "trial"})
        names = ("start", "done", "now", "own_items", "others", "first", "second")
        numbers = [ib.arg(name, ib.int64()) for name in names]
        answers = ib.arg("answers", ib.buffer((2,), "int64"))
        with ib.attr(tirx.const(0), "pragma_import_llvm", ir.StringImm(launches.POLICY)):
            ib.evaluate(tirx.call_extern("int64", "looplift_launched", *numbers[:5]))
            for place, time in enumerate(numbers[5:]):
                answer = tirx.call_extern("int64", "looplift_launches", time)
                ib.buffer_store(answers, answer, [place])
    trial = tvm.tirx.build(tvm.IRModule({"trial": builder.get()}), target="llvm")["trial"]

    def run(
        start: int, done: int, now: int, first: int, second: int, *, items: tuple[int, int] = (1, 1)
    ) -> tuple[bool, bool]:
        answers = tvm.runtime.tensor(np.zeros(2, np.int64))
        trial(start, done, now, *items, first, second, answers)
        one, other = answers.numpy()
        return bool(one), bool(other)

    return run


def test_a_launch_that_is_faster_than_one_core_makes_no_pause(launched: Trial) -> None:
    # Two parts of 100 take 200 on one core; these took 199 and 200.
    assert launched(1000, 1100, 1199, 1199, 1200) == (True, True)
    assert launched(1000, 1100, 1200, 1200, 1201) == (True, True)


def test_a_pause_is_as_long_as_what_was_lost(launched: Trial) -> None:
    # 100 of work and 350 of waiting, where one core would have taken 200.
    assert launched(1000, 1100, 1450, 1450 + 249, 1450 + 250) == (False, True)


def test_the_work_of_the_others_is_estimated_by_their_items(launched: Trial) -> None:
    assert launched(1000, 1100, 1800, 1800, 1801, items=(1, 7)) == (True, True)
    assert launched(1000, 1100, 1801, 1801, 1802, items=(1, 7)) == (False, True)
    # The other of two threads has one item of three, which takes half of the caller's time.
    assert launched(5000, 5100, 5150, 5150, 5151, items=(2, 1)) == (True, True)
    assert launched(6000, 6100, 6151, 6151, 6153, items=(2, 1)) == (False, True)


def test_losses_add_up(launched: Trial) -> None:
    launched(0, 100, 450, 0, 0)
    assert launched(1000, 1100, 1450, 1450 + 499, 1450 + 500) == (False, True)


def test_gains_count_against_losses(launched: Trial) -> None:
    launched(0, 100, 450, 0, 0)  # loses 250
    launched(1000, 1200, 1200, 0, 0)  # gains 200
    assert launched(2000, 2100, 2450, 2450 + 299, 2450 + 300) == (False, True)


def test_gains_are_not_saved_for_later(launched: Trial) -> None:
    launched(0, 10_000, 10_000, 0, 0)
    assert launched(20_000, 20_100, 20_450, 20_450 + 249, 20_450 + 250) == (False, True)


def test_a_pause_is_limited(launched: Trial) -> None:
    for _ in range(100):
        launched(0, 0, 100, 0, 0)
    assert launched(0, 0, 100, 100 + 1599, 100 + 1600) == (False, True)


def test_a_small_loss_makes_a_short_pause_whatever_was_lost_before(launched: Trial) -> None:
    launched(0, 0, 5000, 0, 0)
    assert launched(0, 0, 10, 10 + 159, 10 + 160) == (False, True)
    assert launched(0, 0, 1000, 1000 + 6009, 1000 + 6010) == (False, True)


def test_a_clock_that_is_set_back_ends_the_pause(launched: Trial) -> None:
    assert launched(10_000, 10_100, 10_450, 5, 6) == (True, True)


def _model() -> Any:
    model = parse(TWO_LOOPS)
    weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def _source(executable: Any, kind: str) -> str:
    (library,) = (part for part in executable.mod.imports if part.kind == "llvm")
    return str(library.inspect_source(kind))


def test_all_parallel_loops_of_a_model_measure_their_launches() -> None:
    code = _source(looplift.compile(looplift.from_onnx(_model()), "native"), "ll")
    launching = len(re.findall(r"call i32 %\w+\(ptr nonnull @__tvm_parallel_lambda", code))
    assert launching >= 2
    assert len(re.findall(r"load atomic i64, ptr @looplift\.pause_start", code)) == launching
    assert len(re.findall(r"^@looplift\.lost = ", code, re.MULTILINE)) == 1


@pytest.mark.parametrize("is_paused", [False, True])
def test_results_do_not_depend_on_pauses(is_paused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_paused:
        constant = launches.POLICY.replace("ret i64 %result", "ret i64 0")
        assert constant != launches.POLICY
        monkeypatch.setattr(launches, "POLICY", constant)
    model = _model()
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    for rows, heads in ((0, 0), (1, 1), (7, 3), (1000, 96)):
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        z = rng.standard_normal((heads, 64, 64)).astype(np.float32)
        given = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(z))
        wanted = session.run(None, {"x": x, "z": z})
        for value, expected, largest in zip(given, wanted, (5e-5, 1e-6), strict=True):
            np.testing.assert_allclose(value.numpy(), expected, rtol=0, atol=largest)


def test_a_model_without_parallel_loops_has_no_policy() -> None:
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


@pytest.mark.parametrize("is_paused", [False, True])
def test_an_error_within_a_part_reaches_the_caller(
    is_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scratch buffer of 2**60 elements cannot be allocated."""
    if is_paused:
        constant = launches.POLICY.replace("ret i64 %result", "ret i64 0")
        monkeypatch.setattr(launches, "POLICY", constant)
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main"})
        memory = ib.arg("memory", ib.buffer((8,), "float32"))
        size = ib.arg("size", ib.int64())
        with ib.sblock("root"), ib.parallel(8) as item, ib.sblock("part"):
            scratch = ib.alloc_buffer((size,), "float32")
            ib.buffer_store(scratch, tirx.const(1.0, "float32"), [0])
            ib.buffer_store(memory, scratch[0], [item])
    module = tvm.IRModule({"main": builder.get()}).with_attr(COMPACTED, True)
    kernel = tvm.compile(module, "llvm")["main"]
    memory = tvm.runtime.tensor(np.zeros(8, np.float32))
    kernel(memory, 16)
    np.testing.assert_array_equal(memory.numpy(), 1)
    with pytest.raises(Exception, match=r"memory|alloc"):
        kernel(memory, 1 << 60)


@pytest.mark.parametrize(
    ("triple", "clock"),
    one_of(
        2,
        [
            ("x86_64-linux-gnu", "rdtsc"),
            ("amd64-linux-gnu", "rdtsc"),
            ("aarch64-linux-gnu", "cntvct"),
            ("arm64-apple-darwin", "cntvct"),
            ("riscv64-linux-gnu", None),
        ],
    ),
)
def test_the_clock_of_each_architecture(triple: str, clock: str | None) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    code = _source(looplift.compile(looplift.from_onnx(_model()), target), "asm")
    assert "__tvm_parallel_lambda" in code
    if clock is None:
        assert "looplift.pause_start" not in code
    else:
        assert clock in code.lower()
