"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(metavar="IN", help="An ONNX file.", show_default=False)]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="Fix an input of the model: a number, true or false, a list (1,2,3 or [[1,2],[3,4]]), "
        "or an array (@file.npy). May be repeated.",
        show_default=False,
        default_factory=list,
    ),
]
Dims = Annotated[
    list[str],
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help='Assert a named dimension: NAME=16 or "NAME>=2". May be repeated.',
        show_default=False,
        default_factory=list,
    ),
]
Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        metavar="NAME=1,T,?",
        help="Assert the shape of an input: sizes, names, or ? for what stays open. "
        "May be repeated.",
        show_default=False,
        default_factory=list,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Take no branch merely because the other one would make the run fail."
    ),
]
Rules = Annotated[
    list[str],
    typer.Option(
        "--rules",
        metavar="MODULE",
        help="A Python module whose PHASES run after looplift's. May be repeated.",
        show_default=False,
        default_factory=list,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option("--seed", help="For the made-up inputs.")]
