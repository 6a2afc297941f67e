"""What the benchmarks share: timing, a printed table, a JSON file per benchmark."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PUBLISHED = Path(__file__).parent / "published"
"""The results that the README shows, which are committed."""
PACKAGES = (
    "looplift",
    "onnx",
    "onnx-graphsurgeon",
    "onnxruntime",
    "apache-tvm",
    "onnxslim",
    "onnxsim",
    "openvino",
    "tract",
    "opencv-python-headless",
    "iree-base-compiler",
    "MNN",
    "tinygrad",
    "onnxscript",
    "polygraphy",
)


def seconds(call: Callable[[], object]) -> float:
    """The wall-clock time of one call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alternate(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each call, after one warm-up call each.

    The calls take turns, so that a change in the speed of the machine affects all of them.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: statistics.median(values) for name, values in times.items()}


def session(model: onnx.ModelProto, threads: int = 1) -> onnxruntime.InferenceSession:
    """The model on onnxruntime, with this many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def is_installed(package: str) -> bool:
    """Whether an optional package to compare with is installed."""
    outer, _, _ = package.rpartition(".")
    return (not outer or is_installed(outer)) and importlib.util.find_spec(package) is not None


def report(
    name: str, title: str, rows: Sequence[Mapping[str, object]], notes: Sequence[str] = ()
) -> None:
    """Prints rows, whose keys are the columns, and writes them with the package versions."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_text(row.get(column, "")) for column in columns))
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, table, *notes, sep="\n")

    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, "rows": rows, "notes": notes, "environment": environment()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    console.print(f"written to {path}\n")


def previous(name: str) -> tuple[list[dict[str, object]], list[str]]:
    """The rows and notes of the last run of a benchmark: of this machine, or the published ones."""
    for folder in (RESULTS, PUBLISHED):
        path = folder / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            return content["rows"], content["notes"]
    return [], []


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def processor() -> str:
    """The name of the processor, where Linux says it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def environment() -> dict[str, object]:
    """The versions of the packages, and the machine."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }
