"""The options that several commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .arguments import Assertions, parse_assertions

R = TypeVar("R")


def repeated(name: str, metavar: str, text: str) -> Any:
    """An option that may be given several times."""
    return typer.Option(
        name,
        metavar=metavar,
        help=f"{text} May be repeated.",
        show_default=False,
        default_factory=list,
    )


Model = Annotated[Path, typer.Argument(metavar="IN", help="An ONNX file.", show_default=False)]
Inputs = Annotated[
    list[str],
    repeated(
        "--input",
        "NAME=VALUE",
        "Fix an input of the model: a number, true or false, a list (1,2,3 or [[1,2],[3,4]]), "
        "or an array (@file.npy).",
    ),
]
Dims = Annotated[
    list[str],
    repeated("--dim", "NAME=N", 'Assert a named dimension: NAME=16 or "NAME>=2".'),
]
Shapes = Annotated[
    list[str],
    repeated(
        "--shape",
        "NAME=1,T,?",
        "Assert the shape of an input: sizes, names, or ? for what stays open.",
    ),
]
PrefixMasks = Annotated[
    list[str],
    repeated(
        "--prefix-mask",
        '"NAME axis N"',
        "Assert of an input, or of a value outside of all bodies, that it is a mask and along this "
        "axis, the time, true first and false from some step on. NAME alone is a mask of shape "
        "(batch, time) or (time).",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Only rewrites that hold for runs that fail, too, and for counts beyond what floats "
        "hold exactly.",
    ),
]
Rules = Annotated[
    list[str],
    repeated("--rules", "MODULE", "A Python module whose PHASES run after looplift's."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option("--seed", help="For the made-up inputs.")]


def _assertions(
    inputs: Inputs,
    dims: Dims,
    shapes: Shapes,
    prefix_masks: PrefixMasks,
    strict: Strict = False,
) -> Assertions:
    return parse_assertions(inputs, dims, shapes, strict, prefix_masks)


def asserting(command: Callable[..., R]) -> Callable[..., R]:
    """Gives a command the options that assert something of its model, in place of the keyword
    `given`, which is what they say together.
    """
    own = inspect.signature(command, eval_str=True)
    options = inspect.signature(_assertions, eval_str=True).parameters
    parameters = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own.parameters.values()
        for option in (options.values() if parameter.name == "given" else (parameter,))
    ]

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> R:
        given = _assertions(**{name: arguments.pop(name) for name in options})
        return command(given=given, **arguments)

    # Typer reads the options of a command from its signature and its annotations.
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped
