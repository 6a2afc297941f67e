"""Rewriting time of long chains: how it grows, and how it compares with other tools.

    python benchmarks/chain.py [--sizes 10000 30000 100000] [--peer-size 30000]
        [--peers onnxslim onnxsim]

A chain repeats Mul, Add, Relu and Identity. The batch size is symbolic and all other sizes are left
to inference, as exporters do. A linear rewriter takes ten times as long for ten times the nodes.
Measured with two constants that all nodes share, and with one constant per node. The peers run on
the first kind only, which favours them: onnxslim compares each constant with every other one.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from harness import is_installed, report, seconds
from onnx import TensorProto, helper, numpy_helper

import looplift

OPERATORS = ("Mul", "Add", "Relu", "Identity")
PEERS = {"onnxslim": "slim", "onnxsim": "simplify"}
"""Tools that simplify ONNX models, and the function of each that takes a ModelProto."""


def chain(length: int, constants: int) -> onnx.ModelProto:
    """A chain of `length` nodes on float32 [batch, 64], with `constants` different constants."""
    random = np.random.default_rng(0)
    pool = [
        numpy_helper.from_array(np.float32(random.uniform(0.5, 1)), f"onnx::Mul_{index}")
        for index in range(constants)
    ]
    nodes = []
    value = "input"
    for index in range(length):
        op = OPERATORS[index % len(OPERATORS)]
        operand = [pool[index % constants].name] if op in ("Mul", "Add") else []
        output = f"/{op}_{index}_output_0" if index < length - 1 else "output"
        nodes.append(helper.make_node(op, [value, *operand], [output], name=f"/{op}_{index}"))
        value = output
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 64])],
        pool,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def peers(names: list[str]) -> Iterator[tuple[str, Callable[[onnx.ModelProto], object]]]:
    """The named tools that are installed."""
    for name in names:
        if is_installed(name):
            yield name, getattr(importlib.import_module(name), PEERS[name])
        else:
            print(f'{name} is not installed: pip install "looplift[bench]"')


def measure(size: int, constants: int, repeats: int) -> dict[str, Any]:
    """One row of the table: the fastest of several rewrites."""
    model = chain(size, constants)
    elapsed = min(seconds(partial(looplift.rewrite, model)) for _ in range(repeats))
    return {"tool": "looplift", "nodes": size, "constants": constants, "seconds": elapsed}


def growth(rows: list[dict[str, Any]]) -> str:
    """The ratio of the times for the largest and the smallest chain."""
    first, last = rows[0], rows[-1]
    ratio = last["seconds"] / first["seconds"]
    return (
        f"looplift takes {ratio:.1f} times as long for {last['nodes']} nodes as for "
        f"{first['nodes']} (constants: {last['constants']} and {first['constants']})"
    )


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Measure rewriting time of long chains.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--peer-size", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    arguments = parser.parse_args()
    size, repeats = arguments.peer_size, arguments.repeats

    looplift.rewrite(chain(100, constants=2))  # Work that is done once does not count.
    shared = [measure(nodes, 2, repeats) for nodes in arguments.sizes]
    own = [measure(nodes, nodes, repeats) for nodes in arguments.sizes]
    compared = measure(size, 2, repeats)
    rows = [*shared, *own]
    notes = [growth(shared), growth(own)]
    for name, simplify in peers(arguments.peers):
        elapsed = seconds(partial(simplify, chain(size, constants=2)))
        rows.append({"tool": name, "nodes": size, "constants": 2, "seconds": elapsed})
        ratio = elapsed / compared["seconds"]
        notes.append(f"at {size} nodes {name} takes {ratio:.2f} times as long as looplift")
    report("chain", "Rewriting a chain of Mul, Add, Relu, Identity", rows, notes)


if __name__ == "__main__":
    main()
