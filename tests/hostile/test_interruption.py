"""Ctrl-C ends a command and its child processes within a second or two.

The command names the rule that was interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
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


_ENDLESS_IN_A_CHILD = """import os
from pathlib import Path
from looplift import Miss, Phase, Rule

class Endless(Rule):
    root = "Neg"
    def match(self, m):
        first = Path("first")
        if not first.exists():
            first.write_text(str(os.getpid()))
        if first.read_text() == str(os.getpid()):
            raise Miss("this is not the child process", at=m.node)
        open("started", "w").close()
        while True: pass

PHASES = (Phase("endless", (Endless,), "x"),)
"""


@pytest.mark.parametrize("command", ["rewrite", "inspect"])
def test_a_rule_that_does_not_end(command: str, tmp_path: Path) -> None:
    output = ["-o", "out.onnx"] if command == "rewrite" else []
    errors = _interrupted([command, MODEL, *output], _ENDLESS, tmp_path)
    assert errors == "looplift: Interrupted in `match` of Endless at Neg of `a`.\n"
    assert not (tmp_path / "out.onnx").exists()


def test_ctrl_c_while_child_processes_run(tmp_path: Path) -> None:
    """One imports the model, another has the models on onnxruntime; a terminal ends both."""
    pytest.importorskip("tvm")
    errors = _interrupted(["check", MODEL], _ENDLESS_IN_A_CHILD, tmp_path)
    assert errors == "looplift: Interrupted.\n"


def _interrupted(arguments: Sequence[str], rules: str, folder: Path) -> str:
    """The errors of a command whose processes are all interrupted once a rule has started."""
    PLAIN_FILE(folder)
    (folder / "endless.py").write_text(rules)
    call = start(
        [sys.executable, "-m", "looplift", *arguments, "--rules", "endless"],
        cwd=folder,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
        },
    )
    killer = threading.Timer(60, call.kill)
    killer.start()
    while not (folder / "started").exists() and call.poll() is None:
        time.sleep(0.05)
    os.killpg(call.pid, signal.SIGINT)
    _, errors = call.communicate()
    killer.cancel()
    assert call.returncode == 130
    return errors
