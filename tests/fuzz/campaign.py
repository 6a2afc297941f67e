"""Checks random models in processes of their own, and goes on where it ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BLOCK = 500
"""The models of one process, which bounds what a leak of memory can cost."""
PATIENCE = 120.0
"""A model that computes for this many seconds without a result counts as endless."""
MOST_WAITS = 10
"""The same for one that waits this many times as long, for other processes or for ever."""
Say = Callable[[str], None]


@dataclass
class State:
    """What has been checked: `state.json` in a folder, next to a test for each finding."""

    folder: Path
    finished: set[int] = field(default_factory=set)
    """The numbers of the complete blocks."""
    tally: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)
    """The seeds with findings."""
    seconds: float = 0.0
    """The time of all campaigns together."""

    @classmethod
    def load(cls, folder: Path) -> State:
        """The state in a folder, or that of a new campaign."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "state.json").exists():
            return cls(folder)
        stored = json.loads((folder / "state.json").read_text())
        finished, tally = set(stored["finished"]), Counter(stored["tally"])
        return cls(folder, finished, tally, stored["wrong"], stored["seconds"])

    def save(self) -> None:
        stored = {
            "finished": sorted(self.finished),
            "tally": dict(self.tally),
            "wrong": sorted(self.wrong),
            "seconds": self.seconds,
        }
        partial = self.folder / "state.json.partial"
        partial.write_text(json.dumps(stored, indent=1))
        partial.replace(self.folder / "state.json")

    def add(self, number: int, tally: Counter[str], findings: dict[int, str]) -> None:
        """Adds a complete block: its counts, and a test for each wrong seed."""
        self.finished.add(number)
        self.tally += tally
        for seed, text in findings.items():
            self.wrong.append(seed)
            (self.folder / f"test_seed_{seed}.py").write_text(text)

    def unfinished(self) -> Iterator[int]:
        """The numbers of blocks to check."""
        number = 0
        while True:
            if number not in self.finished:
                yield number
            number += 1


def run_campaign(state: State, seconds: float, jobs: int, on_tvm: int, say: Say) -> None:
    """Checks unfinished blocks for about this many seconds; `say` gets each finding."""
    started, before, lock = time.monotonic(), state.seconds, threading.Lock()
    numbers = state.unfinished()

    def work() -> None:
        while time.monotonic() < started + seconds:
            with lock:
                number = next(numbers)
            tally, findings = check_block(range(number * BLOCK, (number + 1) * BLOCK), on_tvm)
            with lock:
                state.add(number, tally, findings)
                state.seconds = before + time.monotonic() - started
                state.save()
            for seed, text in findings.items():
                say(f"\n# seed {seed}\n{text}")
            say(f"{state.tally['models']} models, {len(state.wrong)} wrong, {state.seconds:.0f} s")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check_block(seeds: range, on_tvm: int) -> tuple[Counter[str], dict[int, str]]:
    """Checks seeds in a process, and in another one after each model that ends the process."""
    tally: Counter[str] = Counter()
    findings: dict[int, str] = {}
    first = seeds.start
    while first < seeds.stop:
        shrinks = False
        for line in _lines(first, seeds.stop - first, on_tvm):
            result = json.loads(line)
            tally.update(result["tally"])
            if result["test"]:
                findings[result["seed"]] = result["test"]
            first, shrinks = result["seed"] + 1, result["shrinks"]
        if first < seeds.stop and not shrinks:  # The process ended at this seed.
            if _original_ends_its_process(first):
                tally["models that end onnxruntime's process"] += 1
            else:
                findings[first] = f"# seed {first} ends the process, or takes {PATIENCE:.0f} s"
            first += 1
    return tally, findings


def _worker(first: int, count: int, on_tvm: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.worker", str(first), str(count), str(on_tvm)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _lines(first: int, count: int, on_tvm: int) -> Iterator[str]:
    """The lines that a worker prints, until it ends or prints none for too long."""
    worker = _worker(first, count, on_tvm)
    assert worker.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_forward, args=(worker.stdout, lines), daemon=True)
    reader.start()
    try:
        while line := _next_line(worker, lines):
            yield line
    finally:
        worker.kill()
        worker.wait()
        reader.join()
        worker.stdout.close()


def _next_line(worker: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> str:
    """The next line; "" if the worker ends, or prints none for too long."""
    before = _processor_time(worker)
    for _ in range(MOST_WAITS):
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=PATIENCE)
        if _processor_time(worker) - before >= PATIENCE:
            break
    return ""


def _processor_time(worker: subprocess.Popen[str]) -> float:
    """The seconds that a process has computed; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _forward(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Puts the lines that are JSON, and at the end an empty one; TVM prints others."""
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put("")


def _original_ends_its_process(seed: int) -> bool:
    with _worker(seed, 0, 0) as worker:
        try:
            return worker.wait(PATIENCE) != 0
        except subprocess.TimeoutExpired:
            worker.kill()
            return True
