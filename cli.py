"""The command line. Exit status: 0 for success, 1 for a finding, 2 for a call or model that is
wrong.
"""

from __future__ import annotations

from .commands import debugging, reporting, rewriting, rules
from .commands.base import app

__all__ = ["app", "debugging", "main", "reporting", "rewriting", "rules"]


def main() -> None:
    """The entry point of the command."""
    app()
