"""The arguments and options that several commands have."""

from __future__ import annotations

import atexit
import functools
import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ..request import Settings
from ..rewrite.engine.inference_engine import ENGINES
from ..rewrite.storage.files import STDIN, StandardInput
from .arguments import parse_assertions, parse_assumptions

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


def _from_stdin(path: Path) -> Path:
    """A file with the model from standard input for `-`; any other path unchanged.

    The file is removed when the process ends. External data is not supported.
    """
    if str(path) != STDIN:
        return path
    folder = tempfile.mkdtemp(prefix="looplift-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = StandardInput(folder, "stdin.onnx")
    copy.write_bytes(sys.stdin.buffer.read())
    return copy


def model_argument(metavar: str, text: str) -> Any:
    """The argument for one model or several, where `-` stands for standard input."""

    def callback(value: Any) -> Any:
        several = isinstance(value, (list, tuple))
        return list(map(_from_stdin, value)) if several else _from_stdin(value)

    return typer.Argument(metavar=metavar, help=text, show_default=False, callback=callback)


Model = Annotated[Path, model_argument("IN", "An ONNX file, or - for standard input.")]
Inputs = Annotated[
    list[str],
    repeated(
        "--input",
        "NAME=VALUE",
        "Give an input of the model a fixed value: a number, true or false, a list (1,2,3 or "
        "[[1,2],[3,4]]), or an array (@file.npy).",
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
        "Assert the shape of an input: sizes, names, or ? for an unknown dimension.",
    ),
]
PrefixMasks = Annotated[
    list[str],
    repeated(
        "--prefix-mask",
        '"NAME axis N"',
        "Assert that an input, or a value outside all bodies, is a mask that is true first and "
        "false from some time step on; N is its time axis. NAME alone is a mask of shape (batch, "
        "time) or (time).",
    ),
]
Assumptions = Annotated[
    list[str],
    repeated(
        "--assume",
        "WHAT",
        'Assert any of these in words: "dim T=16", "dim T>=1", "input sr=16000", "shape x=1,T", '
        '"prefix mask m axis 1".',
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Preserve errors: inputs on which the original fails must still fail. Also leaves out "
        "rewrites whose float counters are exact only up to 2^24.",
    ),
]
ForEngine = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="ENGINE",
        help="Adapt the result to an inference engine: rules avoid forms that it refuses or "
        "computes wrongly, and keep onnxruntime's own operators for it. One of "
        f"{', '.join(ENGINES)}.",
        show_default=False,
    ),
]
FollowLinks = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Read external data through links that leave the folder of the model.",
    ),
]
Rules = Annotated[
    list[str],
    repeated("--rules", "MODULE", "Also run the PHASES of a Python module."),
]
Sizes = Annotated[
    list[str],
    repeated("--size", "NAME=1,2,7", "Try these sizes for a dimension that is not known."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="The seed for random inputs.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        min=0.1,
        help="Stop comparing runs of a model after this time, by default 120 seconds.",
        show_default=False,
    ),
]


def _settings(
    inputs: Inputs,
    dims: Dims,
    shapes: Shapes,
    prefix_masks: PrefixMasks,
    assumptions: Assumptions,
    rules: Rules,
    strict: Strict = False,
    engine: ForEngine = None,
    follow_links: FollowLinks = False,
) -> Settings:
    asserted = parse_assertions(inputs, dims, shapes, prefix_masks)
    assertions = asserted.extended(parse_assumptions(assumptions))
    return Settings(assertions, strict, engine, tuple(rules), follow_links)


def with_settings(command: Callable[..., R]) -> Callable[..., R]:
    """Replaces the parameter `settings` of a command by the options that it is made from."""
    own = inspect.signature(command, eval_str=True)
    options = inspect.signature(_settings, eval_str=True).parameters
    parameters = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own.parameters.values()
        for option in (options.values() if parameter.name == "settings" else (parameter,))
    ]

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> R:
        settings = _settings(**{name: arguments.pop(name) for name in options})
        return command(settings=settings, **arguments)

    # Typer reads the options of a command from its signature and its annotations.
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped
