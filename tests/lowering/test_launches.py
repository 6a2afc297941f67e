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
from looplift.lowering.scheduling import launches

from .compiled import virtual_machine
from .conftest import parse

TWO_LOOPS = """g (float[n, 256] x, float[h, 64, 64] z) => (float[n, 512] y, float[h, 64, 64] s) {
    y = MatMul (x, w) s = Softmax (z) }"""

Trial = Callable[..., tuple[bool, bool]]


@pytest.fixture
def launched() -> Trial:
    """Tells the policy of a new module of a launch, and asks it twice whether to launch."""
    with IRBuilder() as builder, ib.prim_func():
        ib.func_name("trial")
        ib.func_attr({"global_symbol": "trial"})
        names = ("start", "done", "now", "parts", "first", "second")
        times = [ib.arg(name, tirx.Var(name, "int64")) for name in names]
        answers = ib.arg("answers", ib.buffer((2,), "int64"))
        with ib.attr(tirx.const(0), "pragma_import_llvm", ir.StringImm(launches.POLICY)):
            ib.evaluate(tirx.call_extern("int64", "looplift_launched", *times[:4]))
            for place, time in enumerate(times[4:]):
                answer = tirx.call_extern("int64", "looplift_launches", time)
                ib.buffer_store(answers, answer, [place])
    trial = tvm.tirx.build(tvm.IRModule({"trial": builder.get()}), target="llvm")["trial"]

    def run(start: int, done: int, now: int, parts: int, *asked: int) -> tuple[bool, bool]:
        answers = tvm.runtime.tensor(np.zeros(2, np.int64))
        trial(start, done, now, parts, *asked, answers)
        first, second = answers.numpy()
        return bool(first), bool(second)

    return run


def test_a_launch_that_is_faster_than_one_core_makes_no_pause(launched: Trial) -> None:
    # Two parts of 100 take 200 on one core; these took 199 and 200.
    assert launched(1000, 1100, 1199, 2, 1199, 1200) == (True, True)
    assert launched(1000, 1100, 1200, 2, 1200, 1201) == (True, True)


def test_a_pause_is_as_long_as_what_was_lost(launched: Trial) -> None:
    # 100 of work and 350 of waiting, where one core would have taken 200.
    assert launched(1000, 1100, 1450, 2, 1450 + 249, 1450 + 250) == (False, True)


def test_more_threads_may_wait_longer(launched: Trial) -> None:
    assert launched(1000, 1100, 1450, 8, 1450, 1451) == (True, True)
    assert launched(1000, 1100, 1801, 8, 1801, 1802) == (False, True)


def test_losses_add_up(launched: Trial) -> None:
    launched(0, 100, 450, 2, 0, 0)
    assert launched(1000, 1100, 1450, 2, 1450 + 499, 1450 + 500) == (False, True)


def test_gains_count_against_losses(launched: Trial) -> None:
    launched(0, 100, 450, 2, 0, 0)  # loses 250
    launched(1000, 1200, 1200, 2, 0, 0)  # gains 200
    assert launched(2000, 2100, 2450, 2, 2450 + 299, 2450 + 300) == (False, True)


def test_gains_are_not_saved_for_later(launched: Trial) -> None:
    launched(0, 10_000, 10_000, 2, 0, 0)
    assert launched(20_000, 20_100, 20_450, 2, 20_450 + 249, 20_450 + 250) == (False, True)


def test_a_pause_is_limited(launched: Trial) -> None:
    for _ in range(100):
        launched(0, 0, 100, 2, 0, 0)
    assert launched(0, 0, 100, 2, 100 + 1599, 100 + 1600) == (False, True)


def test_a_small_loss_does_not_shorten_the_pauses(launched: Trial) -> None:
    launched(0, 0, 5000, 2, 0, 0)
    assert launched(0, 0, 10, 2, 10 + 4999, 10 + 5000) == (False, True)


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
    assert len(re.findall(r"load atomic i64, ptr @looplift\.end_of_pause", code)) == launching
    assert len(re.findall(r"^@looplift\.lost = ", code, re.MULTILINE)) == 1


@pytest.mark.parametrize("is_paused", [False, True])
def test_results_do_not_depend_on_pauses(is_paused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_paused:
        constant = launches.POLICY.replace("ret i64 %result", "ret i64 0")
        monkeypatch.setattr(launches, "POLICY", constant)
    model = _model()
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), "native"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    for rows, heads in ((0, 0), (1, 1), (7, 3), (1000, 96)):
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        z = rng.standard_normal((heads, 64, 64)).astype(np.float32)
        given = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(z))
        for value, expected in zip(given, session.run(None, {"x": x, "z": z}), strict=True):
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("triple", "clock"),
    [("x86_64-linux-gnu", "rdtsc"), ("aarch64-linux-gnu", "cntvct"), ("riscv64-linux-gnu", None)],
)
def test_the_clock_of_each_architecture(triple: str, clock: str | None) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    code = _source(looplift.compile(looplift.from_onnx(_model()), target), "asm")
    assert "__tvm_parallel_lambda" in code
    if clock is None:
        assert "looplift.end_of_pause" not in code
    else:
        assert clock in code.lower()
