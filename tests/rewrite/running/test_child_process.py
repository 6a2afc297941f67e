"""Child processes that are interrupted."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from looplift.rewrite.running.child_process import ChildProcess, RemoteObject


class Sleeper:
    """Answers late."""

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"


def test_an_interrupted_request_ends_the_child() -> None:
    """The answer to it must not be taken for that to the next request."""
    with ChildProcess() as process:
        sleeper = RemoteObject(process, Sleeper)
        threading.Timer(
            1.0, signal.pthread_kill, [threading.main_thread().ident or 0, signal.SIGINT]
        ).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            sleeper.call("sleep", 30.0)
        assert time.monotonic() - began < 10
        assert not process.alive
        assert sleeper.call("sleep", 0.0) == "slept"
