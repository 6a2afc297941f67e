"""The commands that answer why not, what changed, and which step broke it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from . import presentation
from .arguments import Assertions
from .base import WRONG, app, end, print_result, reporting, rule_names
from .options import AsJson, Model, Rules, Seed, asserting, repeated
from .outputs import check_target, onnx_files

Check = Annotated[
    str,
    typer.Option(
        "--check",
        metavar="CMD",
        help="A command that exits with another status than 0 for a bad model; {} stands for the "
        "path of the model, which else comes last. By default: outputs on onnxruntime differ.",
    ),
]


def _subject(model: Path, given: Assertions, rules: Sequence[str]) -> Any:
    from ..debug.subject import Subject

    return Subject.of(model, given, all_phases(rules))


# --- explain ---


@app.command(
    epilog="Examples: looplift explain vad.onnx; "
    'looplift explain vad.onnx --node If_0 --assume "input sr=16000"; '
    'looplift explain tagger.onnx --rule FuseRecurrence --assume "prefix mask mask axis 1"; '
    "looplift explain models/ --summary"
)
@reporting
@asserting
def explain(
    model: Annotated[
        Path, typer.Argument(metavar="IN", help="An ONNX file, or with --summary a folder.")
    ],
    *,
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="N",
            help="Only this one, whatever its operator, by its name or a result.",
        ),
    ] = "",
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            metavar="R",
            help="Only this rule. Of one that starts from other nodes than control flow: why not, "
            "where it got furthest.",
            autocompletion=rule_names,
        ),
    ] = "",
    assume: Annotated[
        list[str],
        repeated(
            "--assume",
            "WHAT",
            'What if: "dim T=16", "dim T>=1", "input sr=16000", "shape x=1,T", '
            '"prefix mask m axis 1" (each row of m is true first and false from some step on).',
        ),
    ],
    summary: Annotated[
        bool, typer.Option("--summary", help="The commonest reasons, over all models of a folder.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All rules, those that only make a node smaller, too.")
    ] = False,
    given: Assertions,
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Say why each If, Loop and Scan is left: the rules that could remove it, and what they miss.

    Nothing is written; what is assumed here, rewrite takes as --dim, --input, --shape and
    --prefix-mask. The status is 1 if something is left.
    """
    from ..debug.explaining.explain import explain as ask
    from ..debug.explaining.view import render

    if summary:
        if node:
            raise LoopliftError(
                "A summary is of all nodes", where="--node", remedy="Drop --node or --summary"
            )
        _explain_folder(model, given, rule, assume, rules, as_json)
        return
    subject = _subject(model, given, rules)
    with presentation.busy(f"explaining {model.name}"):
        found = ask(subject, node, rule, assume)
    print_result(render(found, model.name, everything), found.as_json(), as_json)
    end(found.status)


def _explain_folder(
    folder: Path,
    given: Assertions,
    rule: str,
    assume: Sequence[str],
    rules: Sequence[str],
    as_json: bool,
) -> None:
    from ..debug.explaining.explain import explain as ask
    from ..debug.explaining.summary import commonest, render_commonest

    paths = onnx_files(folder) if folder.is_dir() else [folder]
    found = []
    for path in paths:
        with presentation.busy(f"explaining {path.name}"):
            try:
                subject = _subject(path, given, rules)
                found.append((path, ask(subject, rule=rule, assume=assume)))
            except LoopliftError as error:
                presentation.complain(f"{path}: {error}")
    reasons = commonest(found)
    left = sum(len(explanation.left) for _, explanation in found)
    title = f"{left} left in {len(found)} models; the commonest reasons"
    print_result(render_commonest(reasons, title), [asdict(each) for each in reasons], as_json)
    end(WRONG if len(found) < len(paths) else int(left > 0))


# --- step ---


@app.command(
    epilog="Examples: looplift step vad.onnx; "
    'looplift step vad.onnx --do "rule InlineDecidedIf" --do "dump now.onnx"; '
    "echo next | looplift step vad.onnx --json"
)
@reporting
@asserting
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
        typer.Option("--trace", metavar="FILE", help="Walk through this trace of the model."),
    ] = None,
    given: Assertions,
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Walk through the rewrites of a model, with what each of them touches before and after.

    Commands come from the terminal, from a pipe, or from --do. The status is 2 if one fails.
    """
    from ..debug.step import Shell, Walk
    from ..debug.trace_file import read_trace

    subject = _subject(model, given, rules)
    recorded = None if trace is None else read_trace(trace)
    if recorded is not None:
        recorded.check_assertions(subject.assertions)
    with presentation.busy(f"rewriting {model.name}"):
        walk = Walk(subject, recorded, model)
    console = presentation.stdout()
    shell = Shell(walk, console, as_json)
    if do:
        shell.run_script(do)
    elif not sys.stdin.isatty():
        shell.run_script(sys.stdin)
    else:
        shell.cmdloop()
        return
    end(WRONG if shell.failure else 0)


# --- verify ---


@app.command(epilog="Example: looplift verify vad.onnx --rules my_package.my_rules")
@reporting
@asserting
def verify(
    model: Model,
    *,
    given: Assertions,
    rules: Rules,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a model on onnxruntime after each rewrite: the first step and tensor that differ.

    The inputs are the same after each step; they include trip counts 0, 1, 2 and 7 and both sides
    of each If where they can be reached. The status is 1 if a step changes what is computed.
    """
    from ..debug import verify_steps as debug

    subject = _subject(model, given, rules)
    with presentation.counting(f"verifying {model.name}") as progress:
        result = debug.verify_steps(subject, seed=seed, progress=progress)
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    end(result.status)


# --- bisect ---


@app.command(
    epilog="Examples: looplift bisect vad.onnx --rules my_rules; "
    'looplift bisect vad.onnx --check "python run_on_device.py {}"'
)
@reporting
@asserting
def bisect(
    model: Model,
    *,
    check: Check = "",
    given: Assertions,
    rules: Rules,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Find the step, rule and place that make a model bad, in at most log2(steps) + 3 checks.

    The status is 1 if there is one.
    """
    from ..debug import bisect as debug
    from ..debug.checks import Command, SameOutputs

    subject = _subject(model, given, rules)
    with presentation.telling(f"bisecting {model.name}") as tell:
        judge = Command(check, subject.base_dir) if check else SameOutputs.of(subject, seed)
        result = debug.bisect(subject, judge, tell)
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    end(result.status)


# --- reduce ---


@app.command(
    epilog='Examples: looplift reduce vad.onnx -o small.onnx --keep "left Loop"; '
    "looplift reduce vad.onnx -o small.onnx --rules my_rules; "
    'looplift reduce vad.onnx -o small.onnx --check "python crash.py"'
)
@reporting
@asserting
def reduce(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="SMALL",
            help="The model to write; its text, a test and the "
            "nearest model that does not show it are written beside it.",
        ),
    ],
    *,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="WHAT",
            help="differs (rewriting changes the outputs), fires RULE, left OP, reason WORDS, or "
            "error WORDS.",
        ),
    ] = "differs",
    check: Check = "",
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Stop then; the same call goes on.")
    ] = 3600.0,
    given: Assertions,
    rules: Rules,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make the smallest model that still shows something, bodies of loops and branches included.

    A call that was interrupted goes on where it ended. The status is 1: what a model shows is a
    finding.
    """
    from ..debug import reduce as debug

    check_target(output, model, output)
    subject = _subject(model, given, rules)
    with presentation.telling(f"reducing {model.name}") as tell:
        result = debug.reduce(
            subject,
            output,
            keep=keep,
            command=check,
            rules=rules,
            seed=seed,
            seconds=seconds,
            tell=tell,
        )
    print_result(debug.render(result, model.name), result.as_json(), as_json)
    end(result.status)
