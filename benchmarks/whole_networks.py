"""Whole networks beside onnxruntime: one module for all sizes, on one thread and on two.

    python benchmarks/whole_networks.py [NAME ...] [--networks FOLDER]

FOLDER holds, for each network, NAME.onnx (or NAME.onnx.gz without weights, which `hydrate.py` in
the folder `tools` beside it brings back) and NAME.feed0.npz, NAME.feed1.npz, …, inputs of different
sizes; the last is timed. Each network runs in a process of its own. The results of networks that
are not measured this time are kept.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import previous, report

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ROOT.parent / "shared" / "networks"
THREADS = (1, 2)
SECONDS = 3
"""The least duration of each measurement."""
TURNS = 5
"""The least number of turns."""
TURN, PAUSE = 0.3, 0.1
"""The least duration of a turn on several threads, and of the pause before it.

After a turn, the idle threads of that runtime spin for a while.
"""
SLOWEST = 3


def model_path(name: str, networks: Path) -> Path:
    """The model's file, with weights."""
    path = networks / f"{name}.onnx"
    if path.exists():
        return path
    spec = importlib.util.spec_from_file_location(
        "hydrate", networks.parent / "tools" / "hydrate.py"
    )
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return Path(tool.hydrate(name, networks, ROOT / "build" / "networks"))


def measure(name: str, networks: Path) -> dict[str, object]:
    """The row of a network."""
    import onnx
    import onnxruntime
    import tvm
    from tvm import relax

    import looplift

    onnxruntime.set_default_logger_severity(4)
    path = model_path(name, networks)
    feeds = [dict(np.load(file)) for file in sorted(networks.glob(f"{name}.feed*.npz"))]
    start = time.process_time()
    module = looplift.from_onnx(str(path))
    imported = time.process_time()
    machine = relax.VirtualMachine(looplift.compile(module, "native"), tvm.cpu())
    compiled = time.process_time()
    graph = onnx.load(path, load_external_data=False).graph
    inputs = [value.name for value in graph.input if value.name in feeds[-1]]
    row: dict[str, object] = {
        "network": name,
        "date": time.strftime("%Y-%m-%d"),
        "import s": imported - start,
        "compile s": compiled - imported,
    }
    configure = tvm.get_global_func("runtime.config_threadpool")
    cores = os.sched_getaffinity(0)
    for threads in THREADS:
        configure(1, threads)
        # It also binds this thread to one core, where those of onnxruntime would start.
        os.sched_setaffinity(0, cores)
        feed = feeds[-1]
        ours = functools.partial(machine["main"], *bind(feed, inputs))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options)
        theirs = functools.partial(session.run, None, {key: feed[key] for key in inputs})
        row[f"ratio, {threads} thread(s)"] = ratio(ours, theirs, turn=0 if threads == 1 else TURN)
        if threads > 1:
            row[f"ratio, {threads} thread(s), in turn"] = ratio_in_turn(ours, theirs)
        if threads == 1:
            row["difference"] = max(
                difference(
                    session.run(None, {key: each[key] for key in inputs}),
                    results(machine["main"](*bind(each, inputs))),
                )
                for each in feeds
            )
        del session, theirs
    configure(1, 1)
    row["slowest kernels"] = ", ".join(slowest(machine, bind(feeds[-1], inputs)))
    return row


def bind(feed: dict[str, Any], names: list[str]) -> list[Any]:
    """The inputs as tensors, in order."""
    import tvm

    return [tvm.runtime.tensor(feed[name]) for name in names]


def results(value: Any) -> list[Any]:
    """The outputs as arrays."""
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [array for item in value for array in results(item)]


def difference(wanted: list[Any], got: list[Any]) -> float:
    """The largest difference, relative to the largest value of the output."""
    worst = 0.0
    for want, have in zip(wanted, got, strict=True):
        if want.size and want.shape == have.shape:
            scale = max(float(np.abs(want).max()), 1e-30)
            worst = max(worst, float(np.abs(want.astype("f8") - have).max()) / scale)
        elif want.shape != have.shape:
            return float("inf")
    return worst


def ratio(ours: Callable[[], object], theirs: Callable[[], object], turn: float) -> float:
    """The least time of the first call over that of the second.

    The two take turns of at least one call and `turn` seconds, with a pause before each if `turn`
    is not 0.
    """
    ours(), theirs()
    best = [float("inf")] * 2
    start, turns = time.perf_counter(), 0
    while turns < TURNS or time.perf_counter() - start < SECONDS:
        turns += 1
        for place, call in enumerate((ours, theirs)):
            if turn:
                time.sleep(PAUSE)
            best[place] = min(best[place], least_time(call, turn))
    return best[0] / best[1]


def ratio_in_turn(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """The median time of the first call over that of the second, where each follows the other.

    The idle threads of each runtime still spin while the other one runs.
    """
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < TURNS or time.perf_counter() - start < SECONDS:
        for record, call in zip(times, (ours, theirs), strict=True):
            begin = time.perf_counter()
            call()
            record.append(time.perf_counter() - begin)
    return statistics.median(times[0]) / statistics.median(times[1])


def least_time(call: Callable[[], object], seconds: float) -> float:
    """The least time of a call, in seconds, over calls for at least `seconds`."""
    best, begin = float("inf"), time.perf_counter()
    end = begin + seconds
    while True:
        call()
        now = time.perf_counter()
        best, begin = min(best, now - begin), now
        if now >= end:
            return best


def slowest(machine: Any, given: list[Any]) -> list[str]:
    """The kernels that take most of the time, with their share."""
    spent: dict[str, float] = {}
    began: list[float] = []

    def instrument(function: Any, kernel: str, before: bool, value: Any, *arguments: Any) -> int:
        if before:
            began.append(time.perf_counter())
        else:
            spent[kernel] = spent.get(kernel, 0.0) + time.perf_counter() - began.pop()
        return 0

    machine.set_instrument(instrument)
    machine["main"](*given)
    total = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda item: -item[1])[:SLOWEST]
    return [f"{kernel} {seconds / total:.0%}" for kernel, seconds in ordered]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="all networks of the folder if none"
    )
    parser.add_argument(
        "--networks", type=Path, default=NETWORKS, metavar="FOLDER",
        help="the folder of NAME.onnx and its inputs NAME.feed0.npz, ...",
    )  # fmt: skip
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print("ROW " + json.dumps(measure(given.names[0], given.networks)), flush=True)
        return
    found = {file.name.split(".onnx")[0] for file in given.networks.glob("*.onnx*")}
    names = given.names or sorted(found)
    if missing := sorted(set(names) - found):
        parser.error(f"there is no network {missing[0]} in {given.networks} (--networks FOLDER)")
    if not names and given.networks != NETWORKS:
        parser.error(f"there are no networks in {given.networks}")
    if not names:
        print(f"No networks in {given.networks}: nothing to measure (--networks FOLDER)")
        return
    rows, _ = previous("whole_networks")
    for name in names:
        command = [sys.executable, __file__, name, "--one", "--networks", str(given.networks)]
        environment = os.environ | {"TVM_NUM_THREADS": str(max(THREADS))}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
        failed = {"network": name, "slowest kernels": f"failed: {done.stderr.strip()[-200:]}"}
        row = json.loads(lines[-1][4:]) if lines else failed
        rows = [each for each in rows if each["network"] != name] + [row]
    title = "Whole networks: time of looplift / time of onnxruntime, and CPU seconds"
    report("whole_networks", title, rows)


if __name__ == "__main__":
    main()
