"""The commands about rules: which there are, what each says of itself, a new one of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from .base import app, print_result, reporting, rule_names
from .options import AsJson, Rules

rules_app = typer.Typer(
    name="rules",
    help="List the rules, show what one does and why it may not fire, or begin one of your own.",
    epilog="Examples: looplift rules; looplift rules show IfToWhere; "
    "looplift rules new DropDoubleNeg -o double_neg",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(rules_app)


def _list(modules: Sequence[str], as_json: bool) -> None:
    from ..debug.rule_docs import contents, render_contents

    phases = all_phases(modules)
    print_result(render_contents(phases), contents(phases), as_json)


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
    name: Annotated[str, typer.Argument(metavar="NAME", help="A rule.", autocompletion=rule_names)],
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Show what a rule does: an example before and after, each reason it can give, near misses."""
    from ..debug.rule_docs import document, find_rule, render

    phases = all_phases(rules)
    doc = document(find_rule(name, phases), phases)
    print_result(render(doc), asdict(doc), as_json)


@rules_app.command(epilog="Example: looplift rules api > rule-api.md")
def api() -> None:
    """Tell what a rule may ask and do, as a page in Markdown."""
    from ..debug.rule_api import markdown

    typer.echo(markdown(), nl=False)


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

    if name in rule_names(name):
        raise LoopliftError(
            f"There is a rule {name} already",
            remedy="Choose another name: commands and reports tell rules apart by it",
        )
    module = f"{module_name(name)}.rules"
    files = write_package(name, output)
    lines = [
        *(f"written: {file}" for file in files),
        f"test it: cd {output} && python -m pytest",
        f"use it:  cd {output} && looplift rules show {name} --rules {module}",
    ]
    content = {"module": module, "files": [str(file) for file in files]}
    print_result([Text(line) for line in lines], content, as_json)
