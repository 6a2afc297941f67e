"""The command that shows a rewrite as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import presentation
from ..arguments import parse_assertions
from ..options import AsJson, Dims, Inputs, Model, Rules, Seed, Shapes, Strict
from ..outputs import check_target
from ..plugins import all_phases
from .base import app, reporting


@app.command(
    epilog="Examples: looplift report vad.onnx -o vad.html; "
    "looplift report vad.onnx -o vad.html --input sr=16000 --verify"
)
@reporting
def report(
    model: Model,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="The HTML file to write.")
    ],
    *,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Run the model on onnxruntime after each step, or not at all. By default the "
            "result is run, and each step where that takes only seconds.",
            show_default=False,
        ),
    ] = None,
    inputs: Inputs,
    dims: Dims,
    shapes: Shapes,
    strict: Strict = False,
    rules: Rules,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a page that shows each rewrite of a model, and why the rest is left.

    The page is one file that needs no server and no network: the graph before and after each step,
    the rule's source, the numeric check, the reasons, attempts and time of each rule. The status
    is 1 if a step changes what is computed or a rule was undone.
    """
    from ..debug.report.build import build
    from ..debug.report.numeric import Wanted
    from ..debug.report.page import write
    from ..debug.subject import Subject

    check_target(output, model, output)
    wanted = {None: Wanted.IF_CHEAP, True: Wanted.ALL, False: Wanted.NONE}[verify]
    assertions = parse_assertions(inputs, dims, shapes, strict)
    subject = Subject.of(model, assertions, all_phases(rules))
    with presentation.counting(f"following {model.name}") as progress:
        data = build(subject, model.name, wanted=wanted, seed=seed, progress=progress)
    write(data, output)
    if as_json:
        typer.echo(json.dumps({"written": str(output), **data.as_json()}, indent=2))
    else:
        typer.echo(data.verdict())
        typer.echo(f"written: {output}")
    if data.status:
        raise typer.Exit(data.status)
