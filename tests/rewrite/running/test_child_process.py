"""Child processes that are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from looplift.rewrite.running.child_process import ChildProcess

from ...hostile.interruptible import start

PROGRAM = """
import time
from pathlib import Path
from looplift.rewrite.running.child_process import ChildProcess, RemoteObject


class Sleeper:
    def sleep(self, seconds):
        Path("asleep").touch()
        time.sleep(seconds)
        return "slept"


if __name__ == "__main__":
    from sleeper import Sleeper

    with ChildProcess() as process:
        sleeper = RemoteObject(process, Sleeper)
        try:
            sleeper.call("sleep", 60.0)
        except KeyboardInterrupt:
            print("interrupted", process.alive, sleeper.call("sleep", 0.0))
"""


def test_an_interrupted_request_ends_the_child(tmp_path: Path) -> None:
    """The answer to it must not be taken for that to the next request."""
    (tmp_path / "sleeper.py").write_text(PROGRAM)
    program = start(
        [sys.executable, "sleeper.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        while not (tmp_path / "asleep").exists():
            assert program.poll() is None
            time.sleep(0.01)
        began = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.stdout.read() == "interrupted False slept\n"
    assert program.returncode == 0
    assert time.monotonic() - began < 30


def test_a_child_that_is_interrupted_did_not_crash() -> None:
    with ChildProcess() as process:
        process.request("make", signal.signal, (signal.SIGINT, signal.SIG_DFL))
        with pytest.raises(KeyboardInterrupt):
            process.request("make", signal.raise_signal, (signal.SIGINT,))
        assert not process.alive
