"""Explains errors of ONNX's text parser in terms of the text that the user wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import onnx.parser

_POSITION = re.compile(r"\(line: (\d+) column: (\d+)\)")


class Edit(NamedTuple):
    """A part of a text, and what replaces it before the text is parsed."""

    start: int
    end: int
    new: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text with its edits, which are in order and do not overlap."""
    parts: list[str] = []
    done = 0
    for start, end, new in edits:
        parts += text[done:start], new
        done = end
    return "".join([*parts, text[done:]])


def explain_syntax_error(
    error: onnx.parser.ParseError, text: str, *, lines_before: int = 0, edits: Sequence[Edit] = ()
) -> str:
    """`line 1, column 39: Expected character ) not found`, for the text that the user wrote.

    What was parsed has more lines before the text, and the text was edited.
    """
    (raw,) = error.args
    message: str = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    reason = message.strip().rpartition("\n")[2].rstrip(".")
    position = _POSITION.search(message)
    if position is None:
        return reason
    line, column = int(position[1]) - lines_before, int(position[2])
    parsed = edited(text, edits)
    place = sum(map(len, parsed.splitlines(keepends=True)[: line - 1])) + column - 1
    before = text[: _unedited(place, edits)]
    line_start = before.rfind("\n") + 1
    return f"line {before.count(chr(10)) + 1}, column {len(before) - line_start + 1}: {reason}"


def _unedited(place: int, edits: Sequence[Edit]) -> int:
    """The place in a text that belongs to a place in the edited text."""
    shift = 0
    for start, end, new in edits:
        if place < start + shift:
            break
        if place < start + shift + len(new):
            return start
        shift += len(new) - (end - start)
    return place - shift
