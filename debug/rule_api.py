"""The reference of what a rule can use, read from the classes and functions: docs/rule-api.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..rewrite.engine.builder import Builder
from ..rewrite.engine.loop_edit import LoopEdit
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.pattern import PatternRule
from ..rewrite.engine.rule import Match, Options, Phase, Rule
from ..rewrite.facts.counted_loop import CountedLoop, SliceRead, counted_loop
from ..rewrite.facts.fact import Fact
from ..rewrite.facts.facts import Facts
from ..rewrite.facts.reads import AxisRange, axis_element, axis_range, axis_slices
from ..rewrite.facts.slices import AxisSlice
from ..rewrite.graph.index import Index
from ..rewrite.graph.views import CarriedValue, IfView, LoopView, ScanInput, ScanOutput, ScanView
from ..testing import assert_fires, assert_spares, near_misses

_PACKAGE = f"{__name__.partition('.')[0]}."


class Member(NamedTuple):
    """A field, property, method or function that a rule can use."""

    signature: str
    """The name, with parameters and result for a method."""
    summary: str
    """The first paragraph of its docstring."""

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0].partition(":")[0]


@dataclass(frozen=True)
class Section:
    """A class, and how a rule gets an object of it."""

    title: str
    kind: type
    names: str = ""
    """The members for rules, separated by spaces; by default all that are public."""

    def members(self) -> Iterator[Member]:
        """The members in the order of the source, fields first, including inherited ones."""
        wanted = self.names.split()
        own = [each for each in self.kind.__mro__ if each.__module__.startswith(_PACKAGE)]
        fields = {m.name: m for kind in own for m in _fields(kind)}
        methods = {m.name: m for kind in reversed(own) for m in _methods(kind)}
        for member in (*fields.values(), *methods.values()):
            if member.name in wanted or not (wanted or member.name.startswith("_")):
                yield member


SECTIONS = (
    Section("A rule", Rule, "root fires spares before after match apply"),
    Section("A phase", Phase, "name rules summary before after"),
    Section("A rule as a pattern", PatternRule, "pattern replacement normal_form guard"),
    Section("`m`, the argument of `match`", Match),
    Section("`m.options`", Options),
    Section(
        "`m.facts`",
        Facts,
        "of shape known_shape rank dtype scalar is_constant constant opset opset_of origin "
        "varies_in failure",
    ),
    Section("A fact, from `m.facts.of(tensor)`", Fact),
    Section(
        "`m.index`",
        Index,
        "graph_of owner producer home uses use_count consumers is_model_output is_unused encloses "
        "is_outside original ancestor_in position captures nodes walk",
    ),
    Section("`m.branches()`", IfView),
    Section("`m.loop()`", LoopView),
    Section("`m.scan()`", ScanView),
    Section("A carried value, from `m.carried()`", CarriedValue),
    Section("A scan input", ScanInput),
    Section("A scan output", ScanOutput),
    Section("A counted loop, from `counted_loop(m.facts, node)`", CountedLoop),
    Section("A slice that a counted loop reads", SliceRead),
    Section("A range along an axis, from `axis_range(m.facts, tensor)`", AxisRange),
    Section(
        "A slice along an axis, from `axis_slices(m.facts, node)`",
        AxisSlice,
        "axis start extent reaches_end is_whole is_reversal",
    ),
    Section(
        "`patch`, the argument of `apply`",
        Patch,
        "facts index opset root note builder builder_after loop constant node home after "
        "node_first start clone_before replace merge_constant replace_input replace_in_body "
        "remove replace_node inline hoist hoist_constant swap_branches prepend_body "
        "add_outputs drop_outputs set_attribute split_loop toward_normal_form",
    ),
    Section(
        "`emit`, from `patch.builder(like)`",
        Builder,
        "like __call__ outputs constant vector scalar unsqueeze squeeze transpose move_axis "
        "reshape merge_axes shape split slice reverse concat repeat max min reduce trip_count "
        "iteration_numbers all_slices scan_output",
    ),
    Section("`patch.loop(node)`", LoopEdit),
)

Functions = tuple[Callable[..., Any], ...]
FUNCTIONS: Functions = (counted_loop, axis_range, axis_element, axis_slices)
"""The functions for rules."""
TEST_FUNCTIONS: Functions = (assert_fires, assert_spares, near_misses)
"""The functions for the tests of rules."""

_HEAD = """# What a rule can use

Written by `looplift rules api`, from the docstrings. [Write a rule in ten
minutes](write-a-rule-in-ten-minutes.md) is the introduction.

A `Tensor` has a `name`; a `Node` has `op`, `domain`, `attrs`, `inputs` and `outputs`; a `Graph` has
`inputs`, `outputs`, `nodes` and `initializers`. `match` only reads them; only `patch` changes a
graph. A `Dim` is a number or a symbolic expression such as `N + 2`. A `Use` is a pair: the node
that reads a value, or the graph that returns it, and the slot there. Where a method takes
`KnownScalars`, give it `m.facts`.

```python
weight = m.need(m.facts.constant(m.node.inputs[1]), "{} is not constant", m.node.inputs[1])
for carried in m.carried():  # of the root, a Loop or Scan
    update = m.index.producer(carried.output)  # the node that computes the next value

emit = patch.builder(patch.root.outputs[0])
total = emit("Add", emit.transpose(found, [1, 0]), emit.constant(bias))
patch.replace(patch.root.outputs[0], total)
patch.loop(patch.root).drop_carried([0])
```

`match` may return anything but None: a node, a tensor, or a dataclass of what it found. With
`class MyRule(Rule[Node])` a type checker knows that `found` is a Node.
"""


def markdown() -> str:
    """The page."""
    functions = _functions("Functions", FUNCTIONS), _functions("Tests of a rule", TEST_FUNCTIONS)
    return "\n".join([_HEAD, *map(_section, SECTIONS), *functions])


def _section(section: Section) -> str:
    about = _first_paragraph(inspect.getdoc(section.kind))
    return "\n".join([f"## {section.title}", "", about, "", *_table(section.members()), ""])


def _functions(title: str, functions: Functions) -> str:
    modules = dict.fromkeys(function.__module__ for function in functions)
    imports = [
        f"from {module} import "
        + ", ".join(each.__name__ for each in functions if each.__module__ == module)
        for module in modules
    ]
    members = (Member(_signature(f), _first_paragraph(f.__doc__)) for f in functions)
    return "\n".join([f"## {title}", "", "```python", *imports, "```", "", *_table(members), ""])


def _table(members: Iterator[Member]) -> list[str]:
    rows = [f"| `{_cell(m.signature)}` | {_cell(m.summary)} |" for m in members]
    return ["| | |", "|---|---|", *rows]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _signature(function: Callable[..., Any], skipped: int = 0) -> str:
    """The name, parameters and result of a function."""
    signature = inspect.signature(function)
    own = list(signature.parameters.values())[skipped:]
    text = str(signature.replace(parameters=own)).replace("'", "")
    return f"{function.__name__}{text}"


def _methods(kind: type) -> Iterator[Member]:
    for name, member in vars(kind).items():
        if isinstance(member, property):
            returned = inspect.signature(member.fget).return_annotation if member.fget else ""
            yield Member(f"{name}: {returned}", _first_paragraph(member.__doc__))
        elif inspect.isfunction(member):
            yield Member(_signature(member, skipped=1), _first_paragraph(member.__doc__))


def _fields(kind: type) -> Iterator[Member]:
    """The fields that a class declares and its `__init__` sets, with the docstring under each."""
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(source, ast.ClassDef)
    makers = [n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    parameters = {
        each.arg: ast.unparse(each.annotation)
        for maker in makers
        for each in (*maker.args.args, *maker.args.kwonlyargs)
        if each.annotation is not None
    }
    for statements in (source.body, *(maker.body for maker in makers)):
        for statement, following in zip(statements, [*statements[1:], None]):
            field = _field(statement, parameters)
            if field:
                yield Member(field, _first_paragraph(_docstring(following)))


def _docstring(statement: ast.stmt | None) -> str:
    """The text of a statement that is a docstring; otherwise empty."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def _field(statement: ast.stmt, parameters: Mapping[str, str]) -> str:
    """`name: type` of a field that a statement declares; otherwise empty.

    A field that holds a parameter has the type of the parameter.
    """
    match statement:
        case ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=kind):
            return f"{name}: {ast.unparse(kind)}"
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(parameter)):
            return f"{name}: {parameters[parameter]}" if parameter in parameters else name
        case ast.Assign(targets=[ast.Attribute(attr=name)]):
            return name
    return ""
