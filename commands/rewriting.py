"""The commands that rewrite, import and check models, and those that look into them."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from . import presentation
from .arguments import Assertions, parse_sizes
from .base import FINDING, WRONG, app, end, print_result, reporting
from .batch import DIFFERENT, FAILED, Job
from .options import AsJson, Model, Rules, Seed, asserting, repeated
from .outputs import check_target, plan_outputs, plan_traces


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"looplift {version('looplift')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


# --- rewrite ---


@app.command(
    epilog="Examples: looplift rewrite vad.onnx -o clean.onnx --input sr=16000 --shape x=1,576; "
    "looplift rewrite models/ -o clean/ -j 4"
)
@reporting
@asserting
def rewrite(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="IN...", help="ONNX files, or folders of them."),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUT", help="A file for one model, else a folder."),
    ],
    *,
    given: Assertions,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Run both models on onnxruntime before writing."),
    ] = True,
    rules: Rules,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=0, help="Stop after so many rewrites."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write what was rewritten as JSON lines; for several models a folder.",
        ),
    ] = None,
    trace_all: Annotated[
        bool,
        typer.Option(
            "--trace-all", help="Also every rule that declined, with its reason; and graph hashes."
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", metavar="N", min=1, help="Models at the same time.")
    ] = 1,
    seed: Seed = 0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite models into ones with less control flow that compute the same.

    The result is verified before it is written: if an output differs, nothing is written and the
    status is 1.
    """
    if trace_all and trace is None:
        raise LoopliftError(
            "There is no trace that could tell more", where="--trace-all", remedy="Add --trace FILE"
        )
    plan = plan_outputs(models, output)
    traces = plan_traces(plan, output, trace)
    work = [
        Job(source, target, given, tuple(rules), steps, verify, seed, place, trace_all)
        for (source, target), place in zip(plan, traces)
    ]
    if len(work) == 1:
        outcomes = [presentation.rewrite_one(work[0])]
    else:
        outcomes = presentation.rewrite_many(work, jobs)
    presentation.print_problems(outcomes)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
    elif not quiet:
        presentation.print_outcomes(outcomes)
    statuses = {outcome.status for outcome in outcomes}
    if FAILED in statuses:
        raise typer.Exit(WRONG)
    if DIFFERENT in statuses:
        raise typer.Exit(FINDING)


# --- inspect ---


@app.command(epilog='Example: looplift inspect vad.onnx --dim "T>=1"')
@reporting
@asserting
def inspect(
    model: Model,
    *,
    given: Assertions,
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Show the Ifs, Loops and Scans of a model as a tree, and why each is still there.

    The model is rewritten in memory: nodes that go are marked, those that stay say why.
    """
    from ..debug.inspect import inspect as read
    from ..debug.inspect import render

    with presentation.busy(f"inspecting {model.name}"):
        inspection = read(model, given, all_phases(rules))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(inspection), indent=2))
        return
    presentation.stdout().print(render(inspection, model.name))
    presentation.print_notes(inspection.notes)


# --- import ---


@app.command(
    "import",
    epilog="Examples: looplift import vad.onnx -o vad.py; looplift import vad.onnx -o vad.so",
)
@reporting
@asserting
def import_(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="What to write: .py (the module as text for reading, without its weights), or to "
            "run it .json (for tvm.ir.load_json) or .so (a compiled library).",
        ),
    ],
    target: Annotated[
        str, typer.Option("--target", help="What a .so is compiled for, as TVM writes it.")
    ] = "llvm",
    *,
    given: Assertions,
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Rewrite a model and convert it into a TVM Relax module.

    Tells which loops became one kernel and which a tower of functions, why, and which operators
    the module has.
    """
    from ..debug.relax import check_format, write_module

    check_format(output)
    check_target(output, model, output)
    with presentation.busy(f"importing {model.name}"):
        remarks = write_module(model, output, target, given, rules)
    if as_json:
        typer.echo(json.dumps({"output": str(output), **dataclasses.asdict(remarks)}, indent=2))
        return
    presentation.print_module(remarks)
    typer.echo(f"written: {output}")


# --- check ---


@app.command(epilog="Example: looplift check vad.onnx --input sr=16000 --size batch=1,2,7")
@reporting
@asserting
def check(
    model: Model,
    *,
    given: Assertions,
    sizes: Annotated[
        list[str],
        repeated("--size", "NAME=1,2,7", "Sizes to try for an open dimension."),
    ],
    rules: Rules,
    tvm: Annotated[
        bool, typer.Option("--tvm/--no-tvm", help="Also run the Relax module on TVM.")
    ] = True,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Measure how long a run takes.")
    ] = True,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run the original, the rewritten model and the Relax module, and compare.

    The original and the rewritten model run on onnxruntime, the Relax module on TVM, all with one
    thread, at several sizes. The status is 1 if an output differs.
    """
    from ..debug.check import check as run
    from ..debug.check import render

    with presentation.busy(f"checking {model.name}"):
        result = run(
            model,
            given,
            choices=parse_sizes(sizes),
            with_tvm=tvm,
            with_latency=latency,
            seed=seed,
            rules=all_phases(rules),
        )
    print_result(render(result, model.name), result.as_json(), as_json)
    if not as_json:
        presentation.print_notes(result.notes)
    end(result.status)
