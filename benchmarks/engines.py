"""Which engines compute a model right, before and after rewriting, and after `--for ENGINE`.

    python benchmarks/engines.py [FOLDER] [--engines openvino tract] [--filter TEXT]

FOLDER is a folder of models `x.onnx`, each with its runs in `x.npz`: `RUN|in|INPUT` are the inputs
and `RUN|out|OUTPUT` the results of onnxruntime. Without one, the models are those of the benchmarks
`fused` and `many_loops`. The results of engines that are not measured this time are kept. For TVM,
the last column is the original imported by `looplift.from_onnx` instead of TVM's importer.

An engine computes a model right if all outputs of all runs have the expected shape and differ by at
most 1e-3 of the largest element. Engines run in a child process, because some end it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fused
import many_loops
import numpy as np
import onnx
import onnxruntime
from engine_runners import ENGINES, IMPORTERS, MODULES, PACKAGES, Array
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from harness import is_installed, previous, report

import looplift
from looplift.rewrite.engine import inference_engine
from looplift.rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject

SECONDS = 180.0
TOLERANCE = 1e-3
COLUMNS = ("before", "after", "gained", "lost", "for", "gained for", "lost for")


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
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is its reason
        return f"loading: {_first_line(error)}"
    try:
        for inputs, expected in runs:
            given = model.call("run", inputs, seconds=SECONDS)
            if not all(map(is_right, expected, given)):
                return "wrong"
    except ChildDied as death:
        return f"running: {death}"
    except Exception as error:  # noqa: BLE001 - likewise
        return f"running: {_first_line(error)}"
    return "right"


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))[:150]


def bundled(folder: Path) -> None:
    """Writes models of other benchmarks, each with its runs, into a folder."""
    models = {op: fused.exported(op, 32) for op in fused.GATES}
    models["many_loops"] = many_loops.model(len(many_loops.KINDS))
    random = np.random.default_rng(0)
    for name, model in models.items():
        runs: dict[str, Array] = {}
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for number, sizes in enumerate([{"T": 7, "B": 3}, {"T": 1, "B": 1}]):
            given = model.graph.input[0]
            dims = given.type.tensor_type.shape.dim
            shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in dims]
            x = random.standard_normal(shape).astype(np.float32)
            runs[f"{number}|in|{given.name}"] = x
            runs[f"{number}|out|y"] = session.run(None, {given.name: x})[0]
        onnx.save(model, folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", **runs)  # type: ignore[arg-type]


def models(corpus: Path | None, text: str, folder: Path) -> list[Path]:
    """The models of a corpus whose names contain a text; of bundled ones where none is given."""
    if corpus is None:
        corpus = folder / "corpus"
        corpus.mkdir()
        bundled(corpus)
    found = [path for path in sorted(corpus.glob("*.onnx")) if text in path.name]
    if not found:
        sys.exit(f"There is no model in {corpus} whose name contains '{text}'")
    for path in found:
        try:
            onnx.load(path, load_external_data=False)
        except DecodeError:
            sys.exit(f"{path} is not an ONNX model")
    return found


def main() -> None:
    """Measures and reports, engine by engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?", metavar="FOLDER", help="the models")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES))
    parser.add_argument("--filter", default="", help="only models whose name contains this")
    options = parser.parse_args()
    engines = options.engines or [e for e in ENGINES if is_installed(MODULES.get(e, e))]
    missing = [name for name in engines if not is_installed(MODULES.get(name, name))]
    if missing or not engines:
        wanted = " ".join(PACKAGES.get(name, name) for name in missing or ENGINES)
        parser.error(f"install the engines: pip install {wanted}")
    with tempfile.TemporaryDirectory() as folder:
        paths = models(options.corpus, options.filter, Path(folder))
        for name in engines:
            row, changes = compare(paths, name, Path(folder))
            rows, notes = previous("engines")
            rows = [each for each in rows if each["engine"] != name] + [row]
            notes = [note for note in notes if note.partition(",")[0] not in (name, f"{name} for")]
            notes += changes
            report("engines", "Models that engines compute right", ordered(rows), notes)


def ordered(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows in the order of the engines."""
    return sorted(rows, key=lambda row: list(ENGINES).index(str(row["engine"])))


def compare(paths: list[Path], name: str, folder: Path) -> tuple[dict[str, object], list[str]]:
    """The counts of an engine; what was gained or lost, and why models are not right."""
    counts = dict.fromkeys(COLUMNS, 0)
    changes: list[str] = []
    reasons: dict[str, list[str]] = {}
    with ChildProcess() as process:
        for path in paths:
            runs = runs_of(path.with_suffix(".npz"))
            before = outcome(process, ENGINES[name], path, runs)
            counts["before"] += before == "right"
            after = ""
            last = b""
            for column, suffix in (("after", ""), ("for", " for")):
                if suffix and name in IMPORTERS:
                    after = outcome(process, IMPORTERS[name], path, runs)
                else:
                    known = name in inference_engine.ENGINES and bool(suffix)
                    model = looplift.rewrite(path, engine=name if known else None).proto
                    content = model.SerializeToString(deterministic=True)
                    if content != last:
                        # tinygrad caches files by name.
                        rewritten = folder / f"{column}_{path.name}"
                        rewritten.write_bytes(content)
                        after = outcome(process, ENGINES[name], rewritten, runs)
                        last = content
                counts[column] += after == "right"
                if (before == "right") != (after == "right"):
                    counts[f"{'gained' if after == 'right' else 'lost'}{suffix}"] += 1
                    changes.append(f"{name}{suffix}, {path.stem}: {before} -> {after}")
            if after != "right":
                reasons.setdefault(after, []).append(path.stem)
    common = sorted(reasons.items(), key=lambda item: -len(item[1]))
    changes += [
        f"{name}, {len(stems)} times {why}: {', '.join(stems[:3])}" for why, stems in common
    ]
    version = importlib.metadata.version(PACKAGES.get(name, name).split("[")[0])
    measured = {"version": version, "date": time.strftime("%Y-%m-%d"), "models": len(paths)}
    return {"engine": name, **measured, **counts}, changes


if __name__ == "__main__":
    main()
