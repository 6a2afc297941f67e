"""Objects in a child process, so that a crash of native code costs only one call.

onnxruntime crashes on an LSTM over an empty batch, compiled code on an integer division by zero. A
comparison of runtimes must survive both.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from ..errors import LoopliftError

_CHILD = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"

READY = b"ready"
"""What the child sends when it has started."""

GRACE = 3.0
"""The seconds that an answer may be late before the child is killed."""


class ChildDied(Exception):
    """The child process ended before it answered; the text says how."""


class ChildProcess:
    """A child process that holds objects and calls their methods.

    It starts with the first request, and again with the first request after it died; `generation`
    counts the starts. Errors that are raised in the child are raised here.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    def request(self, *message: Any, seconds: float | None = None) -> Any:
        """The answer to a message.

        Raises `ChildDied` if there is none, or if it takes much longer than `seconds`; and
        KeyboardInterrupt if SIGINT ended the child.
        """
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()
        try:
            with _deadline(child, None if seconds is None else seconds + GRACE, late):
                _send(child.stdin, message)
                raised, answer = pickle.load(child.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ChildDied(self._end_description(late.is_set())) from None
        except BaseException:  # an interruption: the next answer would be that to this message
            self.close()
            raise
        if raised:
            raise answer()
        return answer

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._child is not None

    def close(self) -> None:
        """Kills the child with all its objects."""
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None:
            return self._child
        self.generation += 1
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(path=sys.path, module=__name__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self._child.stdout is not None
        if self._child.stdout.read(len(READY)) != READY:
            raise RuntimeError(
                f"a child process did not start: {self._end_description(late=False)}"
            )
        return self._child

    def _end_description(self, late: bool) -> str:
        """How the child ended."""
        assert self._child is not None
        code, last = self._reap(self._child)
        if code == -signal.SIGINT:  # Ctrl-C interrupts all processes of a terminal
            raise KeyboardInterrupt
        if late:
            return "it did not answer in time"
        end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"its process {end}" + (f": {last}" if last else "")

    def _reap(self, child: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Waits for the child; returns its exit status and the last line of its stderr."""
        self._child = None
        with contextlib.suppress(BrokenPipeError), child:
            pass
        assert self._stderr is not None
        with self._stderr as stderr:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").splitlines()
        messages = [line.strip() for line in lines if line.strip() and not _is_stack_frame(line)]
        return child.returncode, messages[-1] if messages else ""


_shared = ChildProcess()
atexit.register(_shared.close)


def shared_process() -> ChildProcess:
    """The child process that all callers share, because a start takes a third of a second."""
    return _shared


class RemoteObject:
    """An object in a child process, created there by `factory(*args)`.

    `factory` is a class or function of a module. If the child died meanwhile, the object is created
    again.
    """

    def __init__(
        self,
        process: ChildProcess,
        factory: Callable[..., Any],
        *args: Any,
        seconds: float | None = None,
    ) -> None:
        """`seconds` limits the time of `factory`."""
        self._process = process
        self._seconds = seconds
        self._make = (factory, args)
        self._generation = 0
        self._key = 0
        self._open()

    def call(self, method: str, *args: Any, seconds: float | None = None) -> Any:
        """Calls a method of the object. Raises `ChildDied` if the child dies."""
        if self._generation != self._process.generation or not self._process.alive:
            self._open()
        return self._process.request("call", self._key, method, args, seconds=seconds)

    def close(self) -> None:
        """Drops the object."""
        if self._generation == self._process.generation and self._process.alive:
            self._process.request("drop", self._key)

    def _open(self) -> None:
        self._key = self._process.request("make", *self._make, seconds=self._seconds)
        self._generation = self._process.generation


def _is_stack_frame(line: str) -> bool:
    return line.lstrip().startswith('File "')


@contextlib.contextmanager
def _deadline(
    child: subprocess.Popen[bytes], seconds: float | None, late: threading.Event
) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def end() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _send(pipe: IO[bytes], message: object) -> None:
    pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


# --- the child's side ---


def serve() -> None:
    """Answers requests until the pipe is closed. Redirects the output of native code to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(READY)
    answers.flush()
    requests = sys.stdin.buffer
    objects: dict[int, Any] = {}
    while True:
        try:
            message = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = False, _answer(objects, message)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = True, _portable(error)
        _send(answers, answer)


def _answer(objects: dict[int, Any], message: tuple[Any, ...]) -> Any:
    verb, *rest = message
    if verb == "make":
        factory, args = rest
        key = max(objects, default=0) + 1
        objects[key] = factory(*args)
        return key
    if verb == "drop":
        del objects[rest[0]]
        return None
    key, method, args = rest
    return getattr(objects[key], method)(*args)


def _portable(error: Exception) -> Callable[[], Exception]:
    """A callable that creates the error in the parent, or a RuntimeError of the same text."""
    if isinstance(error, LoopliftError):
        return partial(type(error), error.what, where=error.where, remedy=error.remedy)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever an exception's own pickling raises
        return partial(RuntimeError, f"{type(error).__name__}: {error}")
    return partial(_itself, error)


def _itself(error: Exception) -> Exception:
    return error
