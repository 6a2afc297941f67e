"""What all commands share: the application, exit statuses, how errors are told."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import RenderableType

from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from .presentation import complain, stdout

P = ParamSpec("P")
R = TypeVar("R")

FINDING, WRONG = 1, 2

app = typer.Typer(
    name="looplift",
    help="Rewrite dynamic ONNX models so that they compile: loops and branches become plain "
    "operators, and the rest becomes TVM Relax.",
    epilog="Start with: looplift inspect model.onnx. "
    "For tab completion: looplift --install-completion",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def reporting(command: Callable[P, R]) -> Callable[P, R]:
    """Errors the user can act on: one paragraph, status 2, no traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except LoopliftError as error:
            complain(str(error))
            raise typer.Exit(WRONG) from None

    return wrapped


def print_result(parts: Sequence[RenderableType], content: Any, as_json: bool) -> None:
    """Prints a result: its parts for a reader, or its content for a program."""
    if as_json:
        typer.echo(json.dumps(content, indent=2, default=str))
        return
    for part in parts:
        stdout().print(part)


def end(status: int) -> None:
    """Leaves with an exit status."""
    if status:
        raise typer.Exit(status)


def rule_names(incomplete: str) -> list[str]:
    """Completes the name of a rule."""
    names = {rule.name() for phase in all_phases() for rule in phase.rules}
    return sorted(name for name in names if name.startswith(incomplete))
