"""Models that looplift does not accept: how to make each, and words that the message must contain.

The words include the place and the remedy, not only the kind of error.
"""

from __future__ import annotations

from . import malformed, unreadable  # noqa: F401 (registers the cases)
from .case import CASES, BadModel

__all__ = ["CASES", "BadModel"]
