"""What all commands share: the application, exit statuses, how errors are told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from ..presentation import complain
from ..rewrite.errors import LoopliftError

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
