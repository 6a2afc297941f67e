"""The command line. Exit status: 0 for success, 1 for a finding, 2 for a wrong call or model."""

from __future__ import annotations

from .commands.app import app

from .commands import rewriting, debugging, rules  # isort: skip  (the order of the help)

__all__ = ["app", "debugging", "main", "rewriting", "rules"]


def main() -> None:
    """The entry point of the command."""
    app()
