"""Runs hostile calls in this process, one after the other; the caller limits the process.

    python -m tests.hostile.worker FOLDER FIRST STEP

Runs every STEP-th case from FIRST on and prints a JSON object for each.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from typer.testing import CliRunner

from looplift.cli import app
from looplift.plugins import installed_phases

from . import files, operators, options, plugins, rules
from .case import Case

MOST_SECONDS = 10
"""A call that takes longer hangs."""
MOST_MEMORY = 1 << 30
"""The most bytes that this process and its children may hold, and that a child may hold."""
ADDRESS_SPACE = 2 << 30
"""The address space of a process, libraries included."""

CASES: list[Case] = [
    *files.cases(),
    *operators.cases(),
    *options.cases(),
    *plugins.cases(),
    *rules.cases(),
]


class Hangs(BaseException):
    """A call took too long."""


def _hang(*_: object) -> None:
    raise Hangs


def run(case: Case, folder: Path) -> dict[str, object]:
    """Runs a case in a folder and returns what came of it."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    case.write(folder)
    installed_phases.cache_clear()
    sys.modules.pop("plugin_rules", None)
    importlib.invalidate_caches()
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        result = CliRunner().invoke(app, list(case.arguments))
    except Hangs:
        return {"name": case.name, "status": "hangs", "output": "", "seconds": MOST_SECONDS}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    expected = result.exception is None or isinstance(result.exception, SystemExit)
    error = "" if expected else "".join(traceback.format_exception(result.exception))
    return {
        "name": case.name,
        "status": result.exit_code,
        "output": result.output + error,
        "traceback": bool(error),
        "written": sorted(path.name for path in folder.parent.iterdir()),
        "seconds": time.monotonic() - began,
        "memory": _peak_memory(),
    }


def _peak_memory() -> int:
    """The most bytes that this process and each of its children have held so far, added up."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return 1024 * (max([ended, *map(_peak_of, children)]) + _peak_of("self"))


def _peak_of(process: str) -> int:
    """In KiB; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def main(folder: str, first: str, step: str) -> None:
    """Runs a share of the cases."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, _hang)
    sys.path.insert(0, "")
    for number in range(int(first), len(CASES), int(step)):
        result = run(CASES[number], Path(folder, str(number), "work"))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
