"""looplift beside other tools that simplify ONNX models.

    python benchmarks/optimizers.py [FOLDER] [--filter TEXT]

FOLDER is a folder of models with recorded runs, as for `engines.py`. For each tool: the control
flow and nodes that are left, including those in bodies, the CPU seconds of all calls, and on how
many models onnxruntime still computes the recorded outputs. A model that a tool fails on counts as
it was.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from engines import is_right, models, runs_of
from harness import is_installed, report
from optimizer_runners import TOOLS, Tool

from looplift.rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from looplift.rewrite.storage.summary import count_operators

SECONDS = 120.0


def control_flow(operators: Counter[str]) -> tuple[int, int]:
    """The numbers of Loops and Scans, and of Ifs."""
    return operators["Loop"] + operators["Scan"], operators["If"]


def measure(name: str, paths: list[Path], folder: Path) -> tuple[dict[str, object], list[str]]:
    """The row of one tool, and what went wrong."""
    loops = ifs = nodes = right = 0
    seconds, notes = 0.0, []
    with ChildProcess() as process:
        tool: RemoteObject | None = None
        for path in paths:
            target = folder / path.name
            try:
                tool = tool or RemoteObject(process, Tool, name, str(paths[0]))
                seconds += tool.call("run", str(path), str(target), seconds=SECONDS)
                result = onnx.load(target)
            except ChildDied as death:
                tool, result = None, onnx.load(path)
                notes.append(f"{name}, {path.stem}: {death}")
            except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
                result = onnx.load(path)
                notes.append(f"{name}, {path.stem}: {str(error).splitlines()[:1]}")
            operators = count_operators(result)
            left = control_flow(operators)
            loops, ifs, nodes = loops + left[0], ifs + left[1], nodes + operators.total()
            problem = difference(result, runs_of(path.with_suffix(".npz")))
            right += not problem
            if problem:
                notes.append(f"{name}, {path.stem}: {problem}")
    row = {"loops and scans": loops, "ifs": ifs, "nodes": nodes, "seconds": seconds, "right": right}
    return {"tool": name, **row}, notes


def difference(model: onnx.ModelProto, runs: list[Any]) -> str:
    """Why onnxruntime does not compute the recorded outputs; empty if it does."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        names = {value.name for value in session.get_inputs()}
        for inputs, expected in runs:
            given = session.run(None, {n: v for n, v in inputs.items() if n in names})
            if not all(map(is_right, expected, given)):
                return "other outputs"
    except Exception as error:  # noqa: BLE001 - likewise
        return str(error).splitlines()[0][:150]
    return ""


def compare(paths: list[Path], folder: Path) -> tuple[list[dict[str, object]], list[str]]:
    """A row for the originals and for each tool that is installed, and what went wrong."""
    operators = sum((count_operators(onnx.load(path)) for path in paths), Counter[str]())
    loops, ifs = control_flow(operators)
    original = {"loops and scans": loops, "ifs": ifs, "nodes": operators.total()}
    rows: list[dict[str, object]] = [{"tool": "original", **original, "right": len(paths)}]
    notes = [f"{len(paths)} models"]
    for name in TOOLS:
        if not is_installed(name):
            notes.append(f"{name} is not installed")
            continue
        row, problems = measure(name, paths, folder)
        rows.append(row)
        notes += problems
    return rows, notes


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?", metavar="FOLDER", help="the models")
    parser.add_argument("--filter", default="", help="only models whose name contains this")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory() as folder:
        paths = models(options.corpus, options.filter, Path(folder))
        rows, notes = compare(paths, Path(folder))
    report("optimizers", "Tools that simplify ONNX models", rows, notes)


if __name__ == "__main__":
    main()
