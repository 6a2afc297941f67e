"""Loops with many iterations and large carried values, on a small stack.

    python benchmarks/loop_scale.py [--form functions|chosen] [--most 1000000]

Each loop runs with five iterations, then with many, in a thread with a stack of 256 KiB. The memory
is the growth of the peak of the process during the long run, outputs included. `functions` keeps
every loop in its general form, even where one kernel would do. `most` bounds the trip counts.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.parser
import tvm
from harness import report
from tvm import relax

from looplift.lowering import emit
from looplift.lowering.scheduling.pipeline import looplift_pipeline

STACK = 256 * 1024
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


@dataclass(frozen=True)
class Case:
    """A loop, its trip count, and the expected outputs."""

    name: str
    model: str
    count: int
    iterations: int
    x: np.ndarray[Any, Any]
    is_right: Callable[[list[Any]], bool]


COUNTED = """
g (int64 n, float[{size}] x) => (float[{size}] y) {{
    one = Constant <value_float = 1.0> ()
    y = Loop (n, , x) <
        body = b (int64 i, bool c, float[{size}] s) => (bool c2, float[{size}] s2) {{
            s2 = Add(s, one)
            c2 = Identity(c)
        }}
    >
}}"""
WHILE = """
g (int64 n, float[4] x) => (float[4] y, int64 k) <int64 zero = {0}> {
    y, k = Loop (, , x, zero) <
        body = b (int64 i, bool c, float[4] s, int64 j) => (bool c2, float[4] s2, int64 j2)
        <int64 one = {1}, float step = {1}> {
            s2 = Add(s, step)
            j2 = Add(j, one)
            c2 = Less(j2, n)
        }
    >
}"""
ROWS = """
g (int64 n, float[256] x) => (float[256] y, float[k, 256] rows) {
    y, rows = Loop (n, , x) <
        body = b (int64 i, bool c, float[256] s) => (bool c2, float[256] s2, float[256] row)
        <float step = {1}> {
            s2 = Add(s, step)
            row = Identity(s2)
            c2 = Identity(c)
        }
    >
}"""
WHILE_ROWS = """
g (int64 n, float[4] x) => (int64 k, float[r, 4] rows) <int64 zero = {0}> {
    k, y, rows = Loop (, , zero, x) <
        body = b (int64 i, bool c, int64 j, float[4] s)
            => (bool c2, int64 j2, float[4] s2, float[4] row)
        <int64 one = {1}, float step = {1}> {
            j2 = Add(j, one)
            c2 = Less(j2, n)
            s2 = Add(s, step)
            row = Identity(s2)
        }
    >
}"""
NESTED = """
g (int64 n, float[4] x) => (float[4] y) {
    y = Loop (n, , x) <
        body = b (int64 i, bool c, float[4] s) => (bool c2, float[4] s2) {
            s2 = Loop (n, , s) <
                body = d (int64 j, bool e, float[4] t) => (bool e2, float[4] t2)
                <float step = {1}> {
                    t2 = Add(t, step)
                    e2 = Identity(e)
                }
            >
            c2 = Identity(c)
        }
    >
}"""


def _reaches(number: float) -> Callable[[list[Any]], bool]:
    return lambda outputs: bool((outputs[0].numpy() == number).all())


def _counts(count: int) -> Callable[[list[Any]], bool]:
    wanted = np.arange(1, count + 1, dtype=np.float32)
    return lambda outputs: bool(np.array_equal(outputs[1].numpy()[:, 3], wanted))


def cases(most: int) -> list[Case]:
    """The loops, each with a trip count of at most `most`."""
    small, row, large = (np.zeros(size, np.float32) for size in (4, 256, 1 << 21))
    counts = [min(count, most) for count in (300, 10**3, 10**4, 10**5, 10**6)]
    few, *of_rows, many = counts
    rows = of_rows[-1]
    return [
        Case("while loop", WHILE, many, many, small, _reaches(many)),
        *(Case("rows of 1 KiB", ROWS, n, n, row, _counts(n)) for n in of_rows),
        Case("rows, count unknown", WHILE_ROWS, rows, rows, small, _counts(rows)),
        Case("loop in a loop", NESTED, few, few * few, small, _reaches(few * few)),
        Case("state of 8 MB", COUNTED.format(size=1 << 21), few, few, large, _reaches(few)),
    ]


def peak() -> float:
    """The peak memory of the process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(case: Case, form: str) -> dict[str, object]:
    """Compiles and runs a loop. Raises AssertionError if the outputs are wrong."""
    model = onnx.parser.parse_model(HEADER + case.model)
    pipeline = looplift_pipeline(fuse_loops=form == "chosen")
    executable = tvm.compile(emit(model), target="llvm", relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    results: list[Any] = []

    def run(count: int) -> None:
        given = [tvm.runtime.tensor(value) for value in (np.array(count), case.x)]
        outputs = machine["main"](*given)
        results[:] = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else list(outputs)

    run(5)
    before, start = peak(), time.perf_counter()
    threading.stack_size(STACK)
    thread = threading.Thread(target=run, args=[case.count])
    thread.start()
    thread.join()
    threading.stack_size(0)
    duration, memory = time.perf_counter() - start, peak() - before
    assert case.is_right(results), f"{case.name}: wrong outputs"
    outputs = sum(value.numpy().nbytes for value in results) / 2**20
    return {
        "loop": case.name,
        "iterations": f"{case.iterations:,}",
        "µs an iteration": round(duration / case.iterations * 1e6, 2),
        "peak, MiB more": round(memory, 1),
        "outputs, MiB": round(outputs, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=["functions", "chosen"], default="functions")
    parser.add_argument("--most", type=int, default=10**6)
    arguments = parser.parse_args()
    form = arguments.form
    rows = [measure(case, form) for case in cases(arguments.most)]
    report(f"loop_scale_{form}", f"Loops at scale, form: {form}", rows)


if __name__ == "__main__":
    main()
