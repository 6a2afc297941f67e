"""The commands that explain a rewrite, show it, and find the rewrite that is wrong."""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..debug.exit_status import ERROR, FINDING
from ..request import Settings
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.files import given_name
from ..rewrite.storage.output_checks import check_output
from . import console
from .app import app, complete_rule, exit_with, print_errors, print_result
from .arguments import parse_sizes
from .options import AsJson, Model, Seed, Sizes, model_argument, repeated, with_settings
from .output_files import no_models, onnx_files

CheckCommand = Annotated[
    str,
    typer.Option(
        "--check",
        metavar="CMD",
        help="A command whose exit status is not 0 for a bad model. {} stands for the path of the "
        "model, which otherwise comes last. By default, a model is bad if its outputs on "
        "onnxruntime differ from those of the original.",
    ),
]


# --- explain ---


@app.command(
    epilog="Examples: looplift explain vad.onnx; "
    "looplift explain vad.onnx --node If_0 --input sr=16000; "
    'looplift explain tagger.onnx --rule FuseRecurrence --prefix-mask "mask axis 1"; '
    "looplift explain models/ --summary"
)
@print_errors
@with_settings
def explain(
    model: Annotated[
        Path,
        model_argument("IN", "An ONNX file, - for standard input, or with --summary a folder."),
    ],
    *,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="N",
            help="Explain only this node, which may have any operator. Give its name or the name "
            "of an output.",
        ),
    ] = "",
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            metavar="R",
            help="Explain only this rule. If its roots are not control flow, show the nodes at "
            "which it passes the most checks.",
            autocompletion=complete_rule,
        ),
    ] = "",
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Show the most common reasons in all models of a folder."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all rules, also those that only simplify a node.")
    ] = False,
    fail_if_left: Annotated[
        bool, typer.Option("--fail-if-left", help="Exit with status 1 if control flow remains.")
    ] = False,
    settings: Settings,
    as_json: AsJson = False,
) -> None:
    """Explain why control flow remains, and what would remove it.

    For each If, Loop and Scan, assertions that help come first: the model is rewritten under each
    to confirm it, and `looplift rewrite` takes the same option. Then comes the rule that would
    remove the whole node, and why it does not. Nothing is written.
    """
    from ..debug.explain import explain as debug
    from ..debug.explain.render import render

    if summary:
        if node:
            raise LoopliftError(
                "A summary covers all nodes", where="--node", remedy="Drop --node or --summary"
            )
        _explain_folder(model, settings, rule, fail_if_left, as_json)
        return
    with console.show_activity(f"explaining {model.name}"):
        found = debug.explain(settings.request(model), node, rule)
    origins = bool(node or rule)
    parts = render(found, model.name, everything=everything, origins=origins)
    print_result(parts, found.as_json(), as_json)
    exit_with(FINDING if fail_if_left and found.remaining else 0)


def _explain_folder(
    folder: Path, settings: Settings, rule: str, fail_if_left: bool, as_json: bool
) -> None:
    from ..debug.explain import explain as debug
    from ..debug.explain.render import render_summary

    paths = onnx_files(folder) if folder.is_dir() else [folder]
    if not paths:
        raise no_models(folder)
    explanations = []
    for path in paths:
        with console.show_activity(f"explaining {path.name}"):
            try:
                found = debug.explain(settings.request(path), rule=rule, tries=False)
                explanations.append((path, found))
            except LoopliftError as error:
                console.print_error(f"{given_name(path)}: {error}")
    reasons = debug.most_common_reasons(explanations)
    count = sum(len(explanation.remaining) for _, explanation in explanations)
    failed = len(explanations) < len(paths)
    where = f"{len(explanations)} model{'s' * (len(explanations) != 1)}"
    what = "; the most common reasons" if reasons else ""
    title = f"{count} remain{'s' * (count == 1)} in {where}{what}"
    parts = render_summary(reasons, title) if explanations else []
    print_result(parts, [asdict(reason) for reason in reasons], as_json)
    exit_with(ERROR if failed else FINDING if fail_if_left and count else 0)


# --- step ---


@app.command(
    epilog="Examples: looplift step vad.onnx; "
    'looplift step vad.onnx --do "rule InlineDecidedIf" --do "dump now.onnx"; '
    "echo next | looplift step vad.onnx --json"
)
@print_errors
@with_settings
def step(
    model: Model,
    *,
    do: Annotated[
        list[str],
        repeated(
            "--do",
            "COMMAND",
            "Carry out a command and leave: next, back, goto N, rule R, node N, list, show, "
            "dump FILE.",
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Step through this trace of the model."),
    ] = None,
    settings: Settings,
    as_json: AsJson = False,
) -> None:
    """Step through the rewrites of a model and the nodes they touch.

    Commands come from the terminal, from a pipe, or from --do; an empty pipe lists the rewrites.
    The exit status is 2 if a command fails.
    """
    from ..debug.step import CommitCursor, Shell
    from ..debug.trace_reader import read_trace

    request = settings.request(model)
    recorded = None if trace is None else read_trace(trace)
    if recorded is not None:
        recorded.check_settings(settings)
    with console.show_activity(f"rewriting {model.name}"):
        cursor = CommitCursor(request, recorded, model)
    shell = Shell(cursor, console.stdout(), as_json)
    if do:
        shell.run_script(do)
    elif not sys.stdin.isatty():
        lines = (line for line in sys.stdin if line.strip())
        shell.run_script(itertools.chain([next(lines, "list")], lines))
    else:
        shell.cmdloop()
        return
    exit_with(ERROR if shell.failure else 0)


# --- verify ---


@app.command(epilog="Example: looplift verify vad.onnx --rules my_package.my_rules")
@print_errors
@with_settings
def verify(
    model: Model,
    *,
    settings: Settings,
    sizes: Sizes,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a model after each rewrite, and show the first difference.

    It runs on onnxruntime, with the same inputs each time. They include trip counts 0, 1, 2 and 7
    and both branches of each If where an input decides. The exit status is 1 if a rewrite changes
    an output or a rule is defective.
    """
    from ..debug import verify_commits as debug

    request = settings.request(model)
    with console.show_commits(f"verifying {model.name}") as progress:
        result = debug.verify_commits(
            request, sizes=parse_sizes(sizes), seed=seed, progress=progress
        )
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    exit_with(result.status)


# --- bisect ---


@app.command(
    epilog="Examples: looplift bisect vad.onnx --rules my_rules; "
    'looplift bisect vad.onnx --check "python run_on_device.py {}"'
)
@print_errors
@with_settings
def bisect(
    model: Model,
    *,
    check: CheckCommand = "",
    settings: Settings,
    sizes: Sizes,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Find the first rewrite that makes a model bad.

    This takes at most log2(rewrites) + 4 checks. The exit status is 1 if there is such a rewrite,
    and 2 if the model is bad before any.
    """
    from ..debug import bisect as debug
    from ..debug.model_checks import CommandCheck, OutputCheck

    if sizes and check:
        raise LoopliftError(
            "Sizes are for the check on onnxruntime",
            where="--size",
            remedy="Drop --size or --check",
        )
    request = settings.request(model)
    with console.show_activity(f"bisecting {model.name}") as show:
        model_check = (
            CommandCheck(check, request.base_dir)
            if check
            else OutputCheck.of(request, seed, parse_sizes(sizes))
        )
        result = debug.bisect(request, model_check, show)
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    exit_with(result.status)


# --- reduce ---


@app.command(
    epilog='Examples: looplift reduce vad.onnx -o small.onnx --keep "left Loop"; '
    "looplift reduce vad.onnx -o small.onnx --rules my_rules; "
    'looplift reduce vad.onnx -o small.onnx --check "python crash.py"'
)
@print_errors
@with_settings
def reduce(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="SMALL",
            help="The model to write. Its text, a test, and the nearest model that does not show "
            "the finding are written next to it.",
        ),
    ],
    *,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="WHAT",
            help="What the model must still show: differs (rewriting changes the outputs), fires "
            "RULE, left OP, reason WORDS, or error WORDS.",
        ),
    ] = "differs",
    check: CheckCommand = "",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=1, help="Stop after this time; the same call then continues."
        ),
    ] = 3600.0,
    settings: Settings,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Reduce a model to the smallest one that still shows a finding.

    Bodies of control flow are reduced, too. A call that was interrupted continues where it stopped.
    The exit status is 1, because the model shows a finding.
    """
    from ..debug.reduce import reduce as debug

    debug.check_files(output, model)
    with console.show_activity(f"reducing {model.name}") as show:
        result = debug.reduce(
            settings.request(model),
            output,
            keep=keep,
            command=check,
            rules=settings.rules,
            seed=seed,
            seconds=seconds,
            progress=show,
        )
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    exit_with(result.status)


# --- report ---


@app.command(
    epilog="Examples: looplift report vad.onnx -o vad.html; "
    "looplift report vad.onnx -o vad.html --input sr=16000 --verify"
)
@print_errors
@with_settings
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
            help="Run the model on onnxruntime after each rewrite, or not at all. By default the "
            "result runs, and the model after each rewrite if that takes only seconds.",
            show_default=False,
        ),
    ] = None,
    settings: Settings,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a web page that shows each rewrite, and what remains.

    The page is one file that needs no server and no network. It shows the graph before and after
    each rewrite, the source of the rule, the numeric check, and the attempts and time of each rule.
    The exit status is 1 if a rewrite changes an output or a rule is defective.
    """
    from ..debug.report.build import build
    from ..debug.report.numeric import Runs
    from ..debug.report.page import write

    check_output(output, model)
    runs = {None: Runs.IF_CHEAP, True: Runs.ALL, False: Runs.NONE}[verify]
    request = settings.request(model)
    with console.show_commits(f"following {model.name}") as progress:
        data = build(request, model.name, runs=runs, seed=seed, progress=progress)
    write(data, output)
    lines = [Text(data.summary()), Text(f"written: {output}")]
    print_result(lines, {"written": str(output), **data.as_json()}, as_json)
    exit_with(data.status)
