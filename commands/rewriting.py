"""The commands that rewrite, inspect, import and check models."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ..debug.exit_status import ERROR, FINDING
from ..request import Settings
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.output_checks import check_output
from . import console
from .app import app, exit_with, print_errors, print_result
from .arguments import parse_sizes
from .batch import DIFFERENT, FAILED, Job
from .options import AsJson, Model, Seed, Sizes, TimeLimit, model_argument, with_settings
from .output_files import plan_outputs, plan_traces


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
@print_errors
@with_settings
def rewrite(
    models: Annotated[
        list[Path],
        model_argument("IN...", "ONNX files, folders of them, or - for standard input."),
    ],
    output: Annotated[
        str,  # A Path would lose the slash at the end of a folder's name.
        typer.Option(
            "-o", "--output", metavar="OUT", help="A file for one model, a folder for several."
        ),
    ],
    *,
    settings: Settings,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify", help="Run both models on onnxruntime and compare them first."
        ),
    ] = True,
    sizes: Sizes,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=0, help="Stop after N rewrites."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write every rewrite to a file of JSON lines; for several models, to a folder.",
        ),
    ] = None,
    trace_all: Annotated[
        bool,
        typer.Option(
            "--trace-all",
            help="Also write every attempt that failed, with its reason, and graph hashes.",
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", metavar="N", min=1, help="Rewrite N models at a time.")
    ] = 1,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print errors and warnings only.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite models to compute the same with less control flow.

    Each result is verified before it is written. If an output differs, nothing is written and the
    exit status is 1.
    """
    if trace_all and trace is None:
        raise LoopliftError(
            "There is no trace to write more to", where="--trace-all", remedy="Add --trace FILE"
        )
    if sizes and not verify:
        raise LoopliftError(
            "Sizes are for verification", where="--size", remedy="Drop --size or --no-verify"
        )
    plan = plan_outputs(models, output)
    traces = plan_traces(plan, Path(output), trace)
    work = [
        Job(
            source,
            target,
            settings,
            steps,
            verify,
            parse_sizes(sizes),
            seed,
            time_limit,
            trace_path,
            trace_all,
        )
        for (source, target), trace_path in zip(plan, traces)
    ]
    if len(work) == 1:
        outcomes = [console.rewrite_one(work[0])]
    else:
        outcomes = console.rewrite_many(work, jobs)
    console.print_problems(outcomes)
    if as_json:
        typer.echo(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    elif quiet:
        console.print_warnings(outcomes)
    else:
        console.print_outcomes(outcomes)
    statuses = {outcome.status for outcome in outcomes}
    exit_with(ERROR if FAILED in statuses else FINDING if DIFFERENT in statuses else 0)


# --- inspect ---


@app.command(epilog='Example: looplift inspect vad.onnx --dim "T>=1"')
@print_errors
@with_settings
def inspect(
    model: Model,
    *,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Show the control flow as a tree, and why each rule declines at a node."
        ),
    ] = False,
    settings: Settings,
    as_json: AsJson = False,
) -> None:
    """Show a model in one screen, with the control flow that remains.

    The model is rewritten in memory. For each If, Loop and Scan that remains, the first reason is
    shown, and an assertion that helps if there is one.
    """
    from ..debug import inspect as debug

    with console.show_activity(f"inspecting {model.name}"):
        inspection = debug.inspect(settings.request(model))
    print_result(debug.render(inspection, model.name, why), asdict(inspection), as_json)
    if not as_json:
        console.print_notes(inspection.notes)


# --- import ---

_DEFAULT_TARGET = "llvm"


@app.command(
    "import",
    epilog="Examples: looplift import vad.onnx -o vad.py; looplift import vad.onnx -o vad.so",
)
@print_errors
@with_settings
def import_(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The file to write: .py for the module as text, without its weights; .json for "
            "tvm.ir.load_json; .so for a compiled library.",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="The TVM target that a .so is compiled for; native: this processor.",
            show_default=_DEFAULT_TARGET,
        ),
    ] = None,
    *,
    settings: Settings,
    as_json: AsJson = False,
) -> None:
    """Rewrite a model and convert it into a TVM Relax module.

    Prints which loops become one kernel and which stay functions, with the reason, and the
    operators of the module.
    """
    from ..debug.relax import check_format, write_module

    check_format(output, target)
    check_output(output, model)
    with console.show_activity(f"importing {model.name}"):
        module = write_module(model, output, target or _DEFAULT_TARGET, settings)
    if as_json:
        typer.echo(json.dumps({"output": str(output), **asdict(module)}, indent=2))
        return
    console.print_module(module)
    if output.suffix == ".so" and target is None:
        console.print_notes(
            ["the library is for every processor of this family; one for --target native is faster"]
        )
    typer.echo(f"written: {output}")


# --- check ---


@app.command(epilog="Example: looplift check vad.onnx --input sr=16000 --size batch=1,2,7")
@print_errors
@with_settings
def check(
    model: Model,
    *,
    settings: Settings,
    sizes: Sizes,
    tvm: Annotated[
        bool, typer.Option("--tvm/--no-tvm", help="Also run the Relax module on TVM.")
    ] = True,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Measure the latency of a run.")
    ] = True,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the original, the rewritten model and the Relax module.

    The original and the rewritten model run on onnxruntime, the Relax module on TVM, all with one
    thread, at several sizes. The exit status is 1 if an output differs.
    """
    from ..debug import check as debug

    with console.show_activity(f"checking {model.name}"):
        result = debug.check(
            model,
            settings,
            sizes=parse_sizes(sizes),
            with_tvm=tvm,
            with_latency=latency,
            seed=seed,
            seconds=time_limit,
        )
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    if not as_json:
        console.print_notes(result.notes)
    exit_with(result.status)
