"""Runs hostile calls in this process, one after the other; the caller limits the process.

    python -m tests.hostile.worker FOLDER FIRST STEP

Runs every STEP-th case from FIRST on and prints a JSON object for each.
"""

from __future__ import annotations

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

from . import files, options, rules
from .case import Case

MOST_SECONDS = 10
"""A call that takes longer hangs."""
MOST_BYTES = 6 << 30
"""The address space of the process; libraries alone take some 2 GiB of it."""

CASES: list[Case] = [*files.cases(), *options.cases(), *rules.cases()]


class Hangs(BaseException):
    """A call took too long."""


def _hang(*_: object) -> None:
    raise Hangs


def run(case: Case, folder: Path) -> dict[str, object]:
    """Runs a case in a folder and returns what came of it."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    case.write(folder)
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
    }


def main(folder: str, first: str, step: str) -> None:
    """Runs a share of the cases."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, _hang)
    sys.path.insert(0, "")
    for number in range(int(first), len(CASES), int(step)):
        result = run(CASES[number], Path(folder, str(number), "work"))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
