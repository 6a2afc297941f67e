"""The errors a user of looplift can meet.

Every message answers three questions: what is wrong, where in the model, what to do about it.
The command line prints them as one paragraph and exits with status 2.
"""

from __future__ import annotations


class LoopliftError(Exception):
    """A problem the user can act on."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        """What is wrong, one sentence without a full stop."""
        self.where = where
        """The place: a file, an input, or a node and the bodies around it."""
        self.remedy = remedy
        """What the user can do, one sentence without a full stop."""
        super().__init__(what, where, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.what, self.where, self.remedy)

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        remedy = f" {self.remedy}." if self.remedy else ""
        return f"{self.what}{place}.{remedy}"


class ModelError(LoopliftError):
    """The model cannot be read, is not valid ONNX, or cannot be written."""


class AssumptionError(LoopliftError):
    """An assertion of the user (`--input`, `--dim`, `--shape`) does not fit the model."""


class UnsupportedError(LoopliftError):
    """The lowering has no translation for something in the model."""


class MissingTvmError(UnsupportedError, ImportError):
    """TVM is not installed, or its libraries cannot be loaded."""


def summary_line(error: Exception) -> str:
    """The message of a library's error in one line; its type if it has no message.

    Skips the native backtrace that TVM puts first.
    """
    lines = (line.strip() for line in str(error).splitlines())
    messages = (line for line in lines if line and not line.startswith(("File ", "Traceback")))
    return next(messages, type(error).__name__)


def _rebuilt(kind: type[LoopliftError], what: str, where: str, remedy: str) -> LoopliftError:
    """Rebuilds an error that crossed a process boundary."""
    return kind(what, where=where, remedy=remedy)
