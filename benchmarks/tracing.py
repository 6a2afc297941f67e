"""What tracing costs: rewriting with no trace, with a trace, and with every attempt in it.

    python benchmarks/tracing.py [--models DIR] [--size 10000] [--rounds 7]

The three take turns in one process, so that the ratios are of one run. Files go to a temporary
folder. Measured on a long chain and on the models of a folder, if one is given.
"""

from __future__ import annotations

import argparse
import gc
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from chain import chain
from harness import report

import looplift
from looplift.debug.trace_writer import TraceWriter

MOST = {"trace": 1.10, "in full": 1.50}
"""What the two traces may take, as multiples of rewriting without one."""


def untraced(model: onnx.ModelProto) -> None:
    """Rewrites."""
    looplift.rewrite(model)


def traced(model: onnx.ModelProto, path: Path, in_full: bool) -> None:
    """Rewrites and writes the trace."""
    with path.open("w", encoding="utf-8") as file, TraceWriter(file, in_full=in_full) as writer:
        looplift.rewrite(model, observer=writer)


def least_cpu_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of the fastest of several calls, which take turns after a warm-up.

    The differences are small: what other programs do on the machine must not be among them.
    """
    for call in calls.values():
        call()
    least = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            gc.collect()
            start = time.process_time()
            call()
            least[name] = min(least[name], time.process_time() - start)
    return least


def measure(name: str, model: onnx.ModelProto, rounds: int, folder: Path) -> dict[str, Any]:
    """One row: seconds without a trace, and what the traces take in multiples of that."""
    path = folder / "trace.jsonl"
    calls: dict[str, Callable[[], object]] = {
        "none": partial(untraced, model),
        "trace": partial(traced, model, path, in_full=False),
        "in full": partial(traced, model, path, in_full=True),
    }
    seconds = least_cpu_seconds(calls, rounds)
    steps = len(looplift.rewrite(model).trace.commits())
    ratios = {kind: seconds[kind] / seconds["none"] for kind in MOST}
    return {"model": name, "steps": steps, "seconds": seconds["none"], **ratios}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure what tracing costs.")
    parser.add_argument("--models", type=Path, help="a folder of ONNX models")
    parser.add_argument("--size", type=int, default=10_000, help="nodes of the chain")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    models = {f"chain of {arguments.size}": chain(arguments.size, constants=2)}
    if arguments.models is not None:
        models |= {p.name: onnx.load(p) for p in sorted(arguments.models.glob("*.onnx"))}
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(name, model, arguments.rounds, Path(folder)) for name, model in models.items()
        ]
    total = sum(row["seconds"] for row in rows)
    notes = []
    for kind, most in MOST.items():
        ratio = sum(row["seconds"] * row[kind] for row in rows) / total
        verdict = "within" if ratio <= most else "above"
        notes.append(f"{kind}: {ratio:.2f} times as long over all, {verdict} {most:.2f}")
    report("tracing", "Rewriting with and without a trace", rows, notes)


if __name__ == "__main__":
    main()
