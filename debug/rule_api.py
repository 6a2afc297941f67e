"""What a rule may ask and do, read from the classes that offer it: docs/rule-api.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Match, Options
from ..rewrite.facts.fact import Fact
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.index import Index
from ..rewrite.graph.views import CarriedValue, IfView, LoopView, ScanInput, ScanOutput, ScanView


class Member(NamedTuple):
    """Something that a rule can write."""

    written: str
    """A name, for a method with its parameters and what it gives."""
    summary: str
    """The first paragraph of its docstring."""

    @property
    def name(self) -> str:
        return self.written.partition("(")[0].partition(":")[0]


@dataclass(frozen=True)
class Offer:
    """A class, and as what a rule meets it."""

    title: str
    kind: type
    names: str = ""
    """The members that are for rules, with blanks between them; by default all that are public."""

    def members(self) -> Iterator[Member]:
        """In the order of the source; fields first."""
        wanted = self.names.split()
        for member in (*_fields(self.kind), *_methods(self.kind)):
            if member.name in wanted or not (wanted or member.name.startswith("_")):
                yield member


OFFERS = (
    Offer("`m`, which `match` is given", Match),
    Offer("`m.options`", Options),
    Offer(
        "`m.facts`",
        Facts,
        "of shape rank dtype scalar is_constant constant opset opset_of origin escapes failure",
    ),
    Offer("A fact, as `m.facts.of(tensor)` gives it", Fact),
    Offer(
        "`m.index`",
        Index,
        "graph_of owner producer home uses use_count consumers is_model_output is_unused encloses "
        "is_outside original ancestor_in position captures nodes walk",
    ),
    Offer("`m.branches()`", IfView),
    Offer("`m.loop()`", LoopView),
    Offer("`m.scan()`", ScanView),
    Offer("A state of a Loop or Scan", CarriedValue),
    Offer("A scan input", ScanInput),
    Offer("A scan output", ScanOutput),
    Offer("`patch`, which `apply` is given", Patch),
)

_HEAD = """# What a rule may ask and do

Written by `looplift rules api`, from the docstrings. [Write a rule in ten
minutes](write-a-rule-in-ten-minutes.md) says how a rule is made of these.

A `Tensor` has a `name`; a `Node` has `op`, `domain`, `attrs`, `inputs` and `outputs`; a `Graph` has
`inputs`, `outputs`, `nodes` and `initializers`. `match` only reads them, and everything below but
`patch` changes nothing. A `Dim` is a number or a symbolic expression such as `N + 2`. A `Use` is a
pair: the node that reads a value, or the graph that returns it, and the slot there.
"""


def markdown() -> str:
    """The page."""
    return "\n".join([_HEAD, *map(_section, OFFERS)])


def _section(offer: Offer) -> str:
    rows = [f"| `{_cell(m.written)}` | {_cell(m.summary)} |" for m in offer.members()]
    about = _first_paragraph(inspect.getdoc(offer.kind))
    return "\n".join([f"## {offer.title}", "", about, "", "| | |", "|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _methods(kind: type) -> Iterator[Member]:
    for name, member in vars(kind).items():
        if isinstance(member, property):
            returned = inspect.signature(member.fget).return_annotation if member.fget else ""
            yield Member(f"{name}: {returned}", _first_paragraph(member.__doc__))
        elif inspect.isfunction(member) and not name.startswith("_"):
            signature = inspect.signature(member)
            own = list(signature.parameters.values())[1:]
            text = str(signature.replace(parameters=own)).replace("'", "")
            yield Member(f"{name}{text}", _first_paragraph(member.__doc__))


def _fields(kind: type) -> Iterator[Member]:
    """What the class declares and its `__init__` sets, with the docstring under each."""
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(source, ast.ClassDef)
    makers = [n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    for statements in (source.body, *(maker.body for maker in makers)):
        for statement, behind in zip(statements, [*statements[1:], None]):
            field = _field(statement)
            if field:
                yield Member(field, _first_paragraph(_text(behind)))


def _text(statement: ast.stmt | None) -> str:
    """The docstring that a statement is; empty if it is none."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def _field(statement: ast.stmt) -> str:
    """`name: type` of a field that a statement makes; empty if it makes none."""
    match statement:
        case ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=kind):
            return f"{name}: {ast.unparse(kind)}"
        case ast.Assign(targets=[ast.Attribute(attr=name)]):
            return name
    return ""
