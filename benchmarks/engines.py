"""Which engines load and compute a model before and after rewriting.

    python benchmarks/engines.py CORPUS [--engines openvino tract mnn] [--filter TEXT]

CORPUS is a folder of models `x.onnx`, each with its runs in `x.npz`: `RUN|in|INPUT` are the inputs
and `RUN|out|OUTPUT` the results of onnxruntime. Of an engine counts whether it computes all runs
right: within 1e-3 of the largest element. Engines run in a child process, because some end it. They
are Python packages: `pip install openvino tract MNN`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from engine_runners import ENGINES, Array
from harness import is_installed, report

import looplift
from looplift.rewrite.errors import LoopliftError
from looplift.rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject

SECONDS = 60.0
TOLERANCE = 1e-3


def runs_of(path: Path) -> list[tuple[dict[str, Array], list[Array]]]:
    """The inputs and expected outputs of each run."""
    found: dict[str, tuple[dict[str, Array], list[Array]]] = {}
    with np.load(path) as file:
        for key, value in file.items():
            run, _, rest = key.partition("|")
            role, _, name = rest.partition("|")
            inputs, outputs = found.setdefault(run, ({}, []))
            if role == "in":
                inputs[name] = value
            elif role == "out":
                outputs.append(value)
    return list(found.values())


def is_right(expected: Array, given: Array) -> bool:
    """Whether an output has the expected shape and elements."""
    if expected.shape != given.shape:
        return False
    if expected.dtype.kind not in "fc":
        return bool(np.array_equal(expected, given))
    bound = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(np.allclose(expected, given, rtol=0.0, atol=bound, equal_nan=True))


def outcome(process: ChildProcess, engine: Any, path: Path, runs: list[Any]) -> str:
    """`right`, `wrong`, or why an engine does not compute a model."""
    try:
        model = RemoteObject(process, engine, str(path), seconds=SECONDS)
    except ChildDied as death:
        return f"loading: {death}"
    except Exception as error:  # whatever an engine raises is its reason
        return f"loading: {_first_line(error)}"
    try:
        for inputs, expected in runs:
            given = model.call("run", inputs, seconds=SECONDS)
            if not all(map(is_right, expected, given)):
                return "wrong"
    except ChildDied as death:
        return f"running: {death}"
    except Exception as error:  # likewise
        return f"running: {_first_line(error)}"
    return "right"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))[:150]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--filter", default="", help="only models whose name contains this")
    options = parser.parse_args()
    missing = [name for name in options.engines if not is_installed(name)]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}")
    totals = {
        name: dict.fromkeys(("right before", "after", "gained", "lost"), 0)
        for name in options.engines
    }
    changes: list[str] = []
    reasons: dict[str, list[str]] = {}
    count = 0
    with tempfile.TemporaryDirectory() as folder, ChildProcess() as process:
        for path in sorted(options.corpus.glob("*.onnx")):
            runs_path = path.with_suffix(".npz")
            if options.filter not in path.name or not runs_path.exists():
                continue
            rewritten = Path(folder, path.name)
            try:
                onnx.save(looplift.rewrite(path).model, rewritten)
            except LoopliftError as error:
                changes.append(f"{path.stem}: {error}")
                continue
            count += 1
            runs = runs_of(runs_path)
            for name in options.engines:
                engine = ENGINES[name]
                before, after = (outcome(process, engine, p, runs) for p in (path, rewritten))
                if after != "right":
                    reasons.setdefault(f"{name}: {after}", []).append(path.stem)
                counts = totals[name]
                counts["right before"] += before == "right"
                counts["after"] += after == "right"
                if (before == "right") != (after == "right"):
                    counts["gained" if after == "right" else "lost"] += 1
                    changes.append(f"{name}, {path.stem}: {before} -> {after}")
    rows = [{"engine": name, "models": count, **counts} for name, counts in totals.items()]
    common = sorted(reasons.items(), key=lambda item: -len(item[1]))
    changes += [f"{len(names)} times {reason}: {', '.join(names[:3])}" for reason, names in common]
    report("engines", "Models that engines compute right", rows, changes)


if __name__ == "__main__":
    main()
