"""An If in Relax: a branch that is not taken costs nothing, and operators around the If are fused.

    python benchmarks/branches.py [--size 256] [--rounds 9]

Measures both with looplift's importer and with TVM's own (`stock`). TVM's importer runs every
operator of both branches except the last, and emits no dataflow block, without which TVM does not
fuse operators.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import tvm
from harness import alternate, report
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend import onnx as stock

import looplift

MATMULS = 30
IMPORTERS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "looplift": looplift.from_onnx,
    "stock": stock.from_onnx,
}
AROUND = """<ir_version: 8, opset_import: ["" : 17]>
around (bool flag, float[64, 64] x) => (float[64, 64] y) {
    one = Constant<value = float {1.0}>()
    a = Exp(x)
    b = Add(a, one)
    before = Mul(b, b)
    chosen = If (flag) <
        then_branch = yes () => (float[64, 64] p) { p = MatMul(before, before) },
        else_branch = no () => (float[64, 64] q) { q = Sin(before) }
    >
    c = Exp(chosen)
    d = Add(c, one)
    y = Mul(d, d)
}"""
"""Three elementwise operators, an If with one operator a branch, three more: fused, 4 kernels."""


def heavy_branch(size: int) -> onnx.ModelProto:
    """An If with a chain of [size, size] matrix products in one branch and a Relu in the other."""
    products = "\n".join(f"m{index + 1} = MatMul(m{index}, weight)" for index in range(MATMULS))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        heavy (bool flag, float[{size}, {size}] m0) => (float[{size}, {size}] y) {{
            y = If (flag) <
                then_branch = heavy () => (float[{size}, {size}] m{MATMULS}) {{ {products} }},
                else_branch = light () => (float[{size}, {size}] l) {{ l = Relu(m0) }}
            >
        }}"""
    )
    weight = np.random.default_rng(0).standard_normal((size, size)) / np.sqrt(size)
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "weight"))
    return model


def compiled(module: Any) -> Any:
    """A virtual machine for the CPU."""
    executable = tvm.compile(module, target=tvm.target.Target("llvm"))
    return relax.VirtualMachine(executable, tvm.cpu())


def time_branches(name: str, model: onnx.ModelProto, rounds: int) -> dict[str, Any]:
    """The milliseconds of a run that takes the heavy branch, and of one that does not."""
    machine = compiled(IMPORTERS[name](model))
    x = tvm.runtime.tensor(
        np.random.default_rng(1)
        .standard_normal([dim.dim_value for dim in model.graph.input[1].type.tensor_type.shape.dim])
        .astype(np.float32)
    )
    flags = {flag: tvm.runtime.tensor(np.array(flag)) for flag in (True, False)}
    times = alternate(
        {str(flag): partial(machine["main"], value, x) for flag, value in flags.items()}, rounds
    )
    taken, untaken = times["True"], times["False"]
    return {
        "importer": name,
        "taken, ms": 1e3 * taken,
        "untaken, ms": 1e3 * untaken,
        "untaken / taken, %": 100 * untaken / taken,
    }


def count_kernels(module: Any) -> int:
    """The number of kernel launches in the text of the module after TVM's fusion."""
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )(module)
    launches = 0

    def visit(expression: Any) -> None:
        nonlocal launches
        if isinstance(expression, relax.Call) and expression.op == tvm.ir.Op.get("relax.call_tir"):
            launches += 1

    for function in fused.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return launches


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Measure what an If costs in Relax.")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    heavy = heavy_branch(arguments.size)
    report(
        "branches",
        f"{MATMULS} MatMuls of {arguments.size}x{arguments.size} in one branch",
        [time_branches(name, heavy, arguments.rounds) for name in IMPORTERS],
    )
    around = onnx.parser.parse_model(AROUND)
    report(
        "kernels",
        "Kernels for an If with one operator a branch between two runs of three elementwise ones",
        [
            {"importer": name, "kernels": count_kernels(load(around))}
            for name, load in IMPORTERS.items()
        ],
    )


if __name__ == "__main__":
    main()
