"""The commands about rules: list them, document one, start a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..plugins import all_phases
from ..rewrite.errors import LoopliftError
from .app import app, complete_rule, print_errors, print_result
from .options import AsJson, Rules

_HELP = "List the rules, document one, or start a rule of your own."

rules_app = typer.Typer(
    name="rules",
    help=_HELP,
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


@rules_app.callback(invoke_without_command=True, help=_HELP)
@print_errors
def _root(context: typer.Context, rules: Rules, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        _list(rules, as_json)


@rules_app.command("list", epilog="Example: looplift rules list --rules my_package.my_rules")
@print_errors
def list_(rules: Rules, as_json: AsJson = False) -> None:
    """List the rules by phase, in the order in which they run."""
    _list(rules, as_json)


@rules_app.command(
    epilog="Examples: looplift rules show IfToWhere; "
    "looplift rules show MyRule --rules my_package.my_rules --json"
)
@print_errors
def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The name of a rule.", autocompletion=complete_rule),
    ],
    rules: Rules,
    as_json: AsJson = False,
) -> None:
    """Show a rule: an example, every reason to decline, near misses."""
    from ..debug.rule_docs import document, find_rule, render

    phases = all_phases(rules)
    doc = document(find_rule(name, phases), phases)
    print_result(render(doc), asdict(doc), as_json)


@rules_app.command(epilog="Example: looplift rules api > rule-api.md")
def api() -> None:
    """Print the reference of what a rule can use, in Markdown."""
    from ..debug.rule_api import markdown

    typer.echo(markdown(), nl=False)


@rules_app.command(epilog="Example: looplift rules soundness > soundness.md")
def soundness() -> None:
    """Print what each rule promises, in Markdown."""
    from ..debug.soundness import markdown

    typer.echo(markdown(), nl=False)


@rules_app.command(epilog="Example: looplift rules new DropDoubleNeg -o double_neg")
@print_errors
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What the rule does, as a class name, such as DropDoubleNeg."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="A folder that does not exist yet."),
    ],
    as_json: AsJson = False,
) -> None:
    """Write a package with a rule that works, and its tests."""
    from ..debug.skeleton import module_name, write_package

    if name in complete_rule(name):
        raise LoopliftError(
            f"There is already a rule {name}",
            remedy="Choose another name: commands and reports identify a rule by its name",
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
