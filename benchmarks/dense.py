"""Matrix products and convolutions on TVM and on onnxruntime, one operator each.

    python benchmarks/dense.py [--only TEXT] [--target native] [--rounds 15] [--threads 1]

Each operator is imported with the sizes of its input known and unknown. The table shows GFLOP/s,
and the time of each divided by that of onnxruntime: looplift is faster where a ratio is below 1.
Times are medians of calls in one process; they take turns on one thread. Operations count as in a
convolution that multiplies its padding, and a transposed one that inserts no zeros.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

# TVM reads it when it is imported; its default is half of the cores. The threads of onnxruntime
# would inherit the cores to which it binds this one.
os.environ |= {"TVM_NUM_THREADS": str(os.cpu_count()), "TVM_BIND_THREADS": "0"}

import numpy as np
import onnx
import tvm
from harness import alternate, report, seconds, session
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import looplift

Array = np.ndarray[Any, Any]
PAUSE = 0.1
"""Seconds after which idle threads stop spinning."""
LEAST_SECONDS = 0.004
"""The time of one turn, which has as many calls as that takes."""


@dataclass(frozen=True)
class Operator:
    """An operator by a constant weight, and the sizes of its inputs to measure."""

    name: str
    op: str
    weight: tuple[int, ...]
    leading: tuple[int, ...]
    """The sizes of the input before those below, which are always known."""
    sizes: Sequence[tuple[int, ...]]
    trailing: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_bytes(self) -> bool:
        """Whether the data is uint8, and the weight int8."""
        return self.op.endswith("Integer")

    def data(self, rng: np.random.Generator, sizes: Sequence[int]) -> Array:
        """An input."""
        shape = (*self.leading, *sizes, *self.trailing)
        if self.is_of_bytes:
            return rng.integers(0, 256, shape, np.uint8)
        return rng.standard_normal(shape).astype(np.float32)

    def model(self, weights: Sequence[Array], sizes: Sequence[int | str]) -> onnx.ModelProto:
        """The model for sizes that are numbers or names."""
        shape = [*self.leading, *sizes, *self.trailing]
        names = ["x", "w", "c"][: 1 + len(weights)]
        rank = len(shape)
        given = TensorProto.UINT8 if self.is_of_bytes else TensorProto.FLOAT
        result = TensorProto.INT32 if self.is_of_bytes else TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node(self.op, names, ["y"], **self.attributes)],
            "operator",
            [helper.make_tensor_value_info("x", given, shape)],
            [helper.make_tensor_value_info("y", result, [None] * rank)],
            [numpy_helper.from_array(w, n) for w, n in zip(weights, names[1:], strict=True)],
        )
        imports = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def weights(self, rng: np.random.Generator) -> list[Array]:
        """The weight, and the bias of a convolution of float32."""
        if self.is_of_bytes:
            return [rng.integers(-128, 128, self.weight, np.int8)]
        shapes: list[tuple[int, ...]] = [self.weight]
        if self.op != "MatMul":
            groups = self.attributes.get("group", 1)
            transposed = self.op == "ConvTranspose"
            shapes.append((self.weight[1] * groups if transposed else self.weight[0],))
        return [(rng.standard_normal(shape) * 0.1).astype(np.float32) for shape in shapes]

    def operations(self, given: Array, result: Array) -> float:
        """The multiplications and additions of a call."""
        if self.op in ("MatMul", "MatMulInteger"):
            return 2.0 * result.size * self.weight[0]
        if self.op == "ConvTranspose":
            return 2.0 * given.size * math.prod(self.weight[1:])
        return 2.0 * result.size * math.prod(self.weight[1:])


def product(depth: int, width: int, rows: Sequence[int], *, of_bytes: bool = False) -> Operator:
    """A matrix product."""
    sizes = [(count,) for count in rows]
    name = f"product {depth}x{width}{' of bytes' if of_bytes else ''}"
    op = "MatMulInteger" if of_bytes else "MatMul"
    return Operator(name, op, (depth, width), (), sizes, (depth,))


def convolution(
    name: str, channels: tuple[int, int], taps: tuple[int, ...], sizes: Sequence[Any],
    transposed: bool = False, of_bytes: bool = False, **attributes: Any,
) -> Operator:  # fmt: skip
    """A convolution of (input, output) channels, padded by half of what the taps reach."""
    given, result = channels
    group = attributes.get("group", 1)
    weight = (given, result // group) if transposed else (result, given // group)
    dilation = attributes.get("dilations", [1])[0]
    attributes.setdefault("pads", [(count - 1) // 2 * dilation for count in taps] * 2)
    places = [size if isinstance(size, tuple) else (size,) for size in sizes]
    op = "ConvInteger" if of_bytes else "ConvTranspose" if transposed else "Conv"
    return Operator(name, op, (*weight, *taps), (1, given), places, (), attributes)


OPERATORS = [
    product(768, 3072, [1, 7, 64, 1000]),
    product(64, 256, [1, 7, 64, 1000]),
    product(768, 50257, [1]),
    product(512, 10, [1, 7, 64, 1000]),
    convolution("3x3", (256, 256), (3, 3), [(1, 1), (7, 1), (8, 8), (7, 7), (28, 28), (10, 100)]),
    convolution(
        "3x3 stride 2", (256, 256), (3, 3), [(2, 2), (14, 2), (16, 16), (56, 56), (64, 63)],
        strides=[2, 2],
    ),
    convolution(
        "3x3 dilation 12", (960, 256), (3, 3), [(8, 8), (14, 20), (28, 28)], dilations=[12, 12]
    ),
    convolution("1x1", (960, 160), (1, 1), [(1, 1), (7, 1), (8, 8), (7, 7), (25, 40)]),
    convolution("1x1 of few channels", (64, 256), (1, 1), [(1, 1), (7, 1), (8, 8), (25, 40)]),
    convolution("11 taps", (128, 128), (11,), [1, 7, 64, 1000]),
    convolution("3 taps stride 2", (512, 512), (3,), [2, 14, 128, 2000], strides=[2]),
    convolution("3 taps dilation 3", (512, 512), (3,), [1, 7, 64, 1000], dilations=[3]),
    convolution(
        "transposed 16 taps stride 8", (256, 128), (16,), [1, 7, 64, 1000], transposed=True,
        strides=[8], pads=[4, 4],
    ),
    convolution(
        "transposed 4x4 stride 2", (128, 64), (4, 4), [(1, 1), (7, 1), (8, 8), (25, 40)],
        transposed=True, strides=[2, 2], pads=[1, 1, 1, 1],
    ),
    convolution(
        "transposed 3x3 stride 2", (64, 32), (3, 3), [(1, 1), (7, 1), (8, 8), (56, 56)],
        transposed=True, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1],
    ),
    convolution(
        "transposed 2x2 stride 2", (128, 64), (2, 2), [(1, 1), (7, 1), (8, 8), (56, 56)],
        transposed=True, strides=[2, 2],
    ),
    convolution(
        "depthwise 5x5", (960, 960), (5, 5), [(1, 1), (7, 1), (8, 8), (7, 7), (25, 40)], group=960
    ),
    convolution(
        "depthwise 3x3 stride 2", (72, 72), (3, 3), [(14, 14), (112, 112)], group=72,
        strides=[2, 2],
    ),
    convolution(
        "7x7 stride 2 of a picture", (3, 64), (7, 7), [(65, 65), (224, 224)], strides=[2, 2]
    ),
    product(768, 3072, [1, 7, 64, 1000], of_bytes=True),
    convolution("3x3 of bytes", (256, 256), (3, 3), [(7, 7), (28, 28)], of_bytes=True),
    convolution(
        "3x3 stride 2 of bytes", (256, 256), (3, 3), [(56, 56)], of_bytes=True, strides=[2, 2]
    ),
    convolution("1x1 of bytes", (960, 160), (1, 1), [(7, 7), (25, 40)], of_bytes=True),
]  # fmt: skip


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Compare dense operators with onnxruntime.")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="operators with this in the name"
    )
    parser.add_argument("--target", default="native", help="a target of TVM, or native")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    chosen = [operator for operator in OPERATORS if arguments.only in operator.name]
    if not chosen:
        names = ", ".join(operator.name for operator in OPERATORS)
        parser.error(f"no operator has '{arguments.only}' in its name: {names}")
    tvm.get_global_func("runtime.config_threadpool")(1, arguments.threads)
    rows = [row for operator in chosen for row in compare(operator, arguments)]
    title = (
        f"Target {arguments.target}, {arguments.threads} thread(s); sizes are those of the input"
    )
    report("dense", title, rows)


def compare(operator: Operator, arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A row for each size."""
    rng = np.random.default_rng(0)
    weights = operator.weights(rng)
    names = [f"d{axis}" for axis in range(len(operator.sizes[0]))]
    of_any_size = machine_of(operator.model(weights, names), arguments.target)
    for sizes in operator.sizes:
        model = operator.model(weights, sizes)
        x = operator.data(rng, sizes)
        tensor = tvm.runtime.tensor(x)
        machines = {"known": machine_of(model, arguments.target), "unknown": of_any_size}
        oracle = session(model, arguments.threads)
        (wanted,) = oracle.run(None, {"x": x})
        for machine in machines.values():
            np.testing.assert_allclose(machine["main"](tensor).numpy(), wanted, rtol=0, atol=1e-3)
        calls: dict[str, Callable[[], object]] = {
            "onnxruntime": partial(oracle.run, None, {"x": x})
        }
        calls |= {name: partial(machine["main"], tensor) for name, machine in machines.items()}
        times = measured(calls, arguments)
        operations = operator.operations(x, wanted)
        yield {
            "operator": operator.name,
            "sizes": "x".join(map(str, sizes)),
            **{f"{name}, GFLOP/s": operations / t / 1e9 for name, t in times.items()},
            **{f"{name}, ratio": times[name] / times["onnxruntime"] for name in machines},
        }


def machine_of(model: onnx.ModelProto, target: str) -> relax.VirtualMachine:
    """The virtual machine for a model."""
    executable = looplift.compile(looplift.from_onnx(model), target)
    return relax.VirtualMachine(executable, tvm.cpu())


def measured(
    calls: dict[str, Callable[[], object]], arguments: argparse.Namespace
) -> dict[str, float]:
    """The median seconds of a call of each."""
    numbers = {name: calls_in_a_turn(call) for name, call in calls.items()}
    turns = {name: partial(repeat, call, numbers[name]) for name, call in calls.items()}
    times: dict[str, float] = {}
    if arguments.threads == 1:
        times = alternate(turns, arguments.rounds)
    else:
        for name, turn in turns.items():
            time.sleep(PAUSE)
            times |= alternate({name: turn}, arguments.rounds)
    return {name: times[name] / numbers[name] for name in calls}


def calls_in_a_turn(call: Callable[[], object]) -> int:
    """How many calls take `LEAST_SECONDS`, by the time of the second call."""
    call()
    return max(1, int(LEAST_SECONDS / seconds(call)))


def repeat(call: Callable[[], object], number: int) -> None:
    """Makes a call several times."""
    for _ in range(number):
        call()


if __name__ == "__main__":
    main()
