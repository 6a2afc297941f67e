"""The errors a user of looplift can meet.

Every message answers three questions: what is wrong, where in the model, what to do about it.
The command line prints them as one paragraph and exits with status 2.
"""

from __future__ import annotations

import re
import unicodedata


class LoopliftError(Exception):
    """A problem the user can act on."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        what, where, remedy = visible(what), visible(where), visible(remedy)
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


class ModelError(LoopliftError, ValueError):
    """The model cannot be read, is not valid ONNX, or cannot be written.

    Like TVM's importer, which raises ValueError for such a model.
    """


class MalformedNodeError(ModelError):
    """A node lacks what its operator needs, so that it has no meaning that could be imported."""


class AssumptionError(LoopliftError, ValueError):
    """An assertion of the user (`--input`, `--dim`, `--shape`) does not fit the model."""


class UnsupportedError(LoopliftError, ValueError, NotImplementedError):
    """The lowering has no translation for something in the model.

    TVM's importer raises ValueError or NotImplementedError in such a case. `looplift.lowering`
    raises a subclass where TVM's importer raises an error of another type.
    """


class MissingTvmError(UnsupportedError, ImportError):
    """TVM is not installed, or its libraries cannot be loaded."""


def visible(text: str) -> str:
    """The text with escapes for characters that a terminal would interpret, line breaks included.

    A name in a model may contain any of them: it could clear the screen, or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(char) for char in text)


def _escaped(char: str) -> str:
    r"""`\x1b` for an escape character; also for marks that change the direction of text."""
    kept = char.isprintable() or unicodedata.category(char) == "Zs"
    return char if kept else char.encode("unicode_escape", "surrogatepass").decode("ascii")


def error_text(error: BaseException) -> str:
    """The message of an error whose own `str` may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a user's exception raises
        return "(it has no message: its `str` fails)"


_CHECK = re.compile(r"^Check failed: (?:\(.*\) is false|.* \(.* vs\. .*\) ): (?=.)")


def summary_line(error: Exception) -> str:
    """The message of a library's error in one line; its type if it has no message.

    Skips TVM's native backtrace, and the condition of a failed check if a message follows it. A
    line that ends with a colon takes the next one along.
    """
    lines = (line.strip() for line in str(error).splitlines())
    messages = (line for line in lines if line and not line.startswith(("File ", "Traceback")))
    summary = next(messages, type(error).__name__)
    if summary.endswith(":"):
        return f"{summary} {next(messages, '')}".rstrip()
    return _CHECK.sub("", summary)


def _rebuilt(kind: type[LoopliftError], what: str, where: str, remedy: str) -> LoopliftError:
    """Rebuilds an error that crossed a process boundary."""
    return kind(what, where=where, remedy=remedy)
