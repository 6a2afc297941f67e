"""The commands about rules: which there are, what each says of itself, a new one of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from .. import presentation
from ..options import AsJson, Rules
from ..plugins import all_phases
from .base import app, reporting

rules_app = typer.Typer(
    name="rules",
    help="List the rules, show what one does and why it may not fire, or begin one of your own.",
    epilog="Examples: looplift rules; looplift rules show IfToWhere; "
    "looplift rules new DropDoubleNeg -o double_neg",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(rules_app)


def _names(incomplete: str) -> list[str]:
    names = {rule.name() for phase in all_phases() for rule in phase.rules}
    return sorted(name for name in names if name.startswith(incomplete))


def _print(parts: Sequence[RenderableType], content: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    for part in parts:
        presentation.stdout().print(part)


def _list(modules: Sequence[str], as_json: bool) -> None:
    from ..debug.rule_docs import contents, render_contents

    phases = all_phases(modules)
    _print(render_contents(phases), contents(phases), as_json)


@rules_app.callback(invoke_without_command=True)
@reporting
def _root(context: typer.Context, rules: Rules, as_json: AsJson = False) -> None:
    """List the rules, show what one does and why it may not fire, or begin one of your own."""
    if context.invoked_subcommand is None:
        _list(rules, as_json)


@rules_app.command("list", epilog="Example: looplift rules list --rules my_package.my_rules")
@reporting
def list_(rules: Rules, as_json: AsJson = False) -> None:
    """List the rules, phase by phase, in the order in which they run."""
    _list(rules, as_json)


@rules_app.command(
    epilog="Examples: looplift rules show IfToWhere; "
    "looplift rules show MyRule --rules my_package.my_rules --json"
)
@reporting
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A rule.", autocompletion=_names)],
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Show what a rule does: an example before and after, each reason it can give, near misses."""
    from ..debug.rule_docs import document, find_rule, render

    phases = all_phases(rules)
    doc = document(find_rule(name, phases), phases)
    _print(render(doc), asdict(doc), as_json)


@rules_app.command(epilog="Example: looplift rules new DropDoubleNeg -o double_neg")
@reporting
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What it does, as a class name: DropDoubleNeg.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="A folder that is not there yet."),
    ],
    as_json: AsJson = False,
) -> None:
    """Write a package with a rule, its examples and a test, which works at once, to go on from."""
    from ..debug.skeleton import module_name, write_package

    module = f"{module_name(name)}.rules"
    files = write_package(name, output)
    if as_json:
        typer.echo(json.dumps({"module": module, "files": [str(file) for file in files]}, indent=2))
        return
    for file in files:
        typer.echo(f"written: {file}")
    typer.echo(f"test it: cd {output} && python -m pytest")
    typer.echo(f"use it:  cd {output} && looplift rules show {name} --rules {module}")
