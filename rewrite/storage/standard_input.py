"""A model that came on standard input: messages name it so, and not by the copy that is read."""

from __future__ import annotations

import os
from pathlib import Path

STDIN = "-"
"""Stands for standard input."""


# Before Python 3.12, a subclass of Path itself cannot be instantiated.
class StandardInput(type(Path())):  # type: ignore[misc]
    """The path of the copy of such a model. Only the copy is in its folder, no external data."""


def given_name(path: str | os.PathLike[str]) -> str:
    """The path as the user gave it: `-` for standard input."""
    return STDIN if isinstance(path, StandardInput) else str(path)


def place_of(path: str | os.PathLike[str]) -> str:
    """How messages name a model."""
    return "standard input" if isinstance(path, StandardInput) else f"file '{path}'"
