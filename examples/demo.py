"""`make demo`: rewrites, imports and compares two small models.

The first is a voice-activity detector with 25 Ifs. It is rewritten without assertions and for a
known sample rate, imported into Relax, and the outputs of all three are compared. The second is a
detector with an LSTM written as a Loop. It becomes one LSTM, and both are timed.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tvm
from rich.console import Console
from rich.table import Table
from rich.tree import Tree
from scripted_detector import recording, scripted_detector
from tvm import relax
from voice_activity import Array, voice_activity_model

import looplift
from looplift.cli import app

OUT = Path(__file__).parent / "out"
CONSOLE = Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints a heading."""
    CONSOLE.print(f"\n[bold]{text}[/bold]")


def looplift_command(arguments: str) -> None:
    """Shows a command as it would be typed, and runs it in the folder of the results."""
    CONSOLE.print(f"[dim]$ looplift {arguments}[/dim]")
    status = app(shlex.split(arguments), standalone_mode=False)
    if status:
        sys.exit(status)


def show_ifs(model: onnx.ModelProto, title: str) -> None:
    """Prints the Ifs of a model as a tree: the children of an If are the Ifs in its branches."""
    tree = Tree(title)
    add_ifs(model.graph, tree)
    CONSOLE.print(tree)


def add_ifs(graph: onnx.GraphProto, tree: Tree, branch: str = "") -> None:
    """Adds the Ifs of a graph to a tree, and under each the Ifs in its branches."""
    for node in graph.node:
        if node.op_type != "If":
            continue
        child = tree.add(f"{branch}If {node.name}")
        for attribute in node.attribute:
            add_ifs(attribute.g, child, f"{attribute.name.removesuffix('_branch')}: ")


def milliseconds(call: Callable[[], object], rounds: int = 30) -> float:
    """The median time of a call in milliseconds."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model on onnxruntime, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def time_scripted(model: onnx.ModelProto) -> None:
    """Times the Loop on onnxruntime, and the LSTM on onnxruntime and on TVM."""
    inputs = recording(length=200)
    original, rewritten = session(model), session(looplift.rewrite(model).model)
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model)), tvm.cpu())
    run: Callable[..., tvm.runtime.Tensor] = machine["main"]
    arguments = [tvm.runtime.tensor(inputs[item.name]) for item in model.graph.input]
    calls: dict[str, Callable[[], Array]] = {
        "original, onnxruntime": lambda: original.run(None, inputs)[0],
        "rewritten, onnxruntime": lambda: rewritten.run(None, inputs)[0],
        "Relax, TVM": lambda: run(*arguments).numpy(),
    }
    expected = calls["original, onnxruntime"]()
    times = {name: milliseconds(call) for name, call in calls.items()}
    before = times["original, onnxruntime"]
    table = Table("200 frames", "milliseconds", "times as fast", "largest difference")
    for name, call in calls.items():
        difference = np.abs(call() - expected).max()
        table.add_row(
            name, f"{times[name]:.2f}", f"{before / times[name]:.1f}", f"{difference:.1e}"
        )
    CONSOLE.print(table)


def main() -> None:
    """Runs the demo."""
    OUT.mkdir(exist_ok=True)
    os.chdir(OUT)
    model = voice_activity_model()
    onnx.save(model, OUT / "detector.onnx")

    say("1. A small voice-activity detector, as an exporter writes it: 25 Ifs, up to four deep")
    show_ifs(model, "detector.onnx")

    say("2. Without assertions, one file for both rates: only the If on the rate remains")
    looplift_command("rewrite detector.onnx -o any_rate.onnx")
    looplift_command("inspect any_rate.onnx")

    say("3. With a known sample rate, no If remains")
    looplift_command("rewrite detector.onnx --input sr=16000 -o rate_16000.onnx")
    looplift_command("inspect rate_16000.onnx")

    say("4. Original on onnxruntime, rewritten on onnxruntime, Relax on TVM")
    looplift_command("check detector.onnx --input sr=16000 --size samples=576 --size batch=1,3")

    scripted = scripted_detector()
    onnx.save(scripted, OUT / "scripted.onnx")
    say("5. A detector with an LSTM written as a Loop, and Ifs around it: one LSTM remains")
    looplift_command("inspect scripted.onnx")
    looplift_command("rewrite scripted.onnx -o one_lstm.onnx")
    looplift_command("inspect one_lstm.onnx")

    say("6. How much faster that is")
    time_scripted(scripted)


if __name__ == "__main__":
    main()
