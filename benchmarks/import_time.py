"""The import time of models with nothing to rewrite, by looplift and by TVM.

    python benchmarks/import_time.py [MODEL ...] [--rounds 9] [--layers 12]

`looplift.from_onnx` reads, rewrites and translates; `tvm.relax.frontend.onnx.from_onnx` only
translates. They take turns on the given models, by default on networks without control flow; the
table shows medians.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import networks
import onnx
from harness import alternate, report
from tvm.relax.frontend import onnx as stock

import looplift


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Compare import times with TVM's importer.")
    parser.add_argument("models", type=Path, nargs="*", help="files that TVM can import, too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    models = {path.stem: onnx.load(path) for path in arguments.models} or {
        "transformer": networks.transformer(arguments.layers),
        "convolutional": networks.convolutional(3 * arguments.layers),
        "perceptron": networks.perceptron(8 * arguments.layers),
    }
    rows = []
    for name, model in models.items():
        times = alternate(
            {
                "stock": partial(stock.from_onnx, model),
                "looplift": partial(looplift.from_onnx, model),
            },
            arguments.rounds,
        )
        rows.append(
            {
                "model": name,
                "nodes": len(model.graph.node),
                "stock, s": times["stock"],
                "looplift, s": times["looplift"],
                "looplift / stock": times["looplift"] / times["stock"],
            }
        )
    report("import_time", "Importing models without control flow into Relax", rows)


if __name__ == "__main__":
    main()
