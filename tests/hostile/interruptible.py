"""Programs that Ctrl-C interrupts, also where the tests run in the background."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Starts a program that SIGINT interrupts; `options` are those of `subprocess.Popen`.

    A shell starts programs in the background with SIGINT ignored, which their children inherit, and
    Python raises KeyboardInterrupt only if it was not ignored at the start.
    """

    def interruptible() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(command, text=True, preexec_fn=interruptible, **options)
