"""The command that shows a rewrite as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..plugins import all_phases
from . import presentation
from .arguments import Assertions
from .base import app, end, print_result, reporting
from .options import AsJson, Model, Rules, Seed, asserting
from .outputs import check_target


@app.command(
    epilog="Examples: looplift report vad.onnx -o vad.html; "
    "looplift report vad.onnx -o vad.html --input sr=16000 --verify"
)
@reporting
@asserting
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
    given: Assertions,
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
    subject = Subject.of(model, given, all_phases(rules))
    with presentation.counting(f"following {model.name}") as progress:
        data = build(subject, model.name, wanted=wanted, seed=seed, progress=progress)
    write(data, output)
    told = [Text(data.verdict()), Text(f"written: {output}")]
    print_result(told, {"written": str(output), **data.as_json()}, as_json)
    end(data.status)
