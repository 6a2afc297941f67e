"""Ctrl-C ends a command within a second or two and names what it interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from .case import MODEL, PLAIN_FILE
from .interruptible import start

_ENDLESS = """from looplift import Phase, Rule

class Endless(Rule):
    root = "Neg"
    def match(self, m):
        open("started", "w").close()
        while True: pass

PHASES = (Phase("endless", (Endless,), "x"),)
"""


@pytest.mark.parametrize("command", ["rewrite", "inspect"])
def test_a_rule_that_does_not_end(command: str, tmp_path: Path) -> None:
    PLAIN_FILE(tmp_path)
    (tmp_path / "endless.py").write_text(_ENDLESS)
    output = ["-o", "out.onnx"] if command == "rewrite" else []
    call = start(
        [sys.executable, "-m", "looplift", command, MODEL, *output, "--rules", "endless"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        },
    )
    killer = threading.Timer(60, call.kill)
    killer.start()
    while not (tmp_path / "started").exists() and call.poll() is None:
        time.sleep(0.05)
    call.send_signal(signal.SIGINT)
    _, errors = call.communicate()
    killer.cancel()
    assert call.returncode == 130
    assert errors == "looplift: Interrupted in `match` of Endless at Neg of `a`.\n"
    assert not (tmp_path / "out.onnx").exists()
