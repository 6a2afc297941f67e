"""Models that are refused: how to make each, and words the message must contain.

The words name the place and what to do, not only the kind of error.
"""

from __future__ import annotations

from . import malformed, unreadable  # noqa: F401 (registers the cases)
from .case import CASES, BadModel

__all__ = ["CASES", "BadModel"]
