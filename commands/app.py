"""What all commands share: the application, errors of the user, and printing a result."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import RenderableType

from ..debug.exit_status import ERROR
from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from .console import print_error, stdout

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="looplift",
    help="Rewrite dynamic ONNX models until they compile: loops and branches become plain "
    "operators, and what remains becomes TVM Relax.",
    epilog="Start with: looplift inspect model.onnx. "
    "For tab completion: looplift --install-completion",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Makes a command print a LoopliftError as one paragraph and exit with status 2."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except LoopliftError as error:
            print_error(str(error))
            raise typer.Exit(ERROR) from None

    return wrapped


def print_result(parts: Sequence[RenderableType], content: Any, as_json: bool) -> None:
    """Prints a result: its parts for a reader, or its content as JSON for a program."""
    if as_json:
        typer.echo(json.dumps(content, indent=2, default=str))
        return
    for part in parts:
        stdout().print(part)


def exit_with(status: int) -> None:
    """Ends the command unless the status is 0."""
    if status:
        raise typer.Exit(status)


def complete_rule(incomplete: str) -> list[str]:
    """The names of rules that begin with a text."""
    names = {rule.name() for phase in all_phases() for rule in phase.rules}
    return sorted(name for name in names if name.startswith(incomplete))
