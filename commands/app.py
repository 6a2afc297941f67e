"""What all commands share: the application, errors of the user, and printing a result."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import typer
import typer.core
from rich.console import RenderableType

from ..debug.exit_status import ERROR, INTERNAL, INTERRUPTED, UNREAD
from ..plugins import all_phases
from ..rewrite.errors import LoopliftError, error_text
from .console import print_error, stdout

P = ParamSpec("P")
R = TypeVar("R")


class _Commands(typer.core.TyperGroup):
    """The commands, which refuse empty paths: one would be the present folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = itertools.pairwise(["", *args])
        if any(not arg and (o in _PATH_OPTIONS or not o.startswith("-")) for o, arg in pairs):
            print_error("An argument is empty. Check that all variables of the shell are set.")
            raise typer.Exit(ERROR)
        return super().parse_args(ctx, args)


_PATH_OPTIONS = ("-o", "--output", "--trace")


app = typer.Typer(
    name="looplift",
    cls=_Commands,
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
    """Makes a command print errors as one paragraph and exit with their status.

    User errors, file errors and lack of memory exit with 2, internal errors with 3, interruptions
    with 130, and output that nothing reads with 141.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return _with_status(command, *args, **kwargs)
        except BrokenPipeError:  # of the command's output, or of the error that it printed
            _discard_output()
            raise typer.Exit(UNREAD) from None

    return wrapped


def _with_status(command: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a command, and prints its error; see `print_errors`."""
    try:
        return command(*args, **kwargs)
    except LoopliftError as error:
        print_error(str(error))
        raise typer.Exit(ERROR) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        print_error(f"A file cannot be used: {error.strerror or error}{place}.")
        raise typer.Exit(ERROR) from None
    except MemoryError:
        print_error("There is not enough memory for this model, its weights or its inputs.")
        raise typer.Exit(ERROR) from None
    except KeyboardInterrupt as interrupt:
        print_error(f"Interrupted{f' {interrupt}' if str(interrupt) else ''}.")
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        print_error(internal_error(error))
        raise typer.Exit(INTERNAL) from None


def _discard_output() -> None:
    """Lets Python flush at its end what nothing reads, which would be another error."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


TRACEBACK = "LOOPLIFT_TRACEBACK"
"""The environment variable that makes internal errors show their traceback."""


def internal_error(error: Exception) -> str:
    """Describes an error of looplift itself in one paragraph, with the command to report it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    kind = type(error).__name__
    return (
        f"Internal error: {kind}: {error_text(error)} at {frame.filename}:{frame.lineno}. This is "
        f'a defect of looplift. `looplift reduce IN -o SMALL.onnx --keep "error {kind}"` makes a '
        f"small model to report it with; {TRACEBACK}=1 shows where it comes from."
    )


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
