"""The reasons that a rule can give, read from its source without running it.

Follows the methods of the rule and what they call in the package of the rule, except for
`looplift.rewrite`, which all rules share.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType

from ..rewrite.engine.rule import Match, Rule

_SHARED = "looplift.rewrite"
"""The engine, whose functions give no reasons of a rule."""


@dataclass(frozen=True)
class Sentence:
    """One reason; `…` stands for a value."""

    text: str
    file: str
    line: int


def sentences(rule: type[Rule]) -> list[Sentence]:
    """The reasons in the order of the calls, each once."""
    found: dict[str, Sentence] = {}
    for function in _CallGraph(rule):
        for sentence in _in_function(rule, function):
            found.setdefault(sentence.text, sentence)
    return list(found.values())


class _CallGraph:
    """The functions that the `match` of a rule may call, in the order of the calls."""

    def __init__(self, rule: type[Rule]) -> None:
        self._rule = rule
        self._package = rule.__module__.partition(".")[0]
        self._seen: dict[FunctionType, None] = {}

    def __iter__(self) -> Iterator[FunctionType]:
        self._follow(self._rule.match)
        self._follow(getattr(self._rule, "guard", None))  # of a PatternRule
        yield from self._seen

    def _follow(self, called: object) -> None:
        if isinstance(called, type):
            for member in vars(called).values():
                self._follow(getattr(member, "fget", member))
            return
        function = inspect.unwrap(called) if callable(called) else called
        if not isinstance(function, FunctionType) or function in self._seen:
            return
        if not self._is_own(function.__module__):
            return
        self._seen[function] = None
        for name in _names(function):
            self._follow(self._resolve(function, name))

    def _is_own(self, module: str) -> bool:
        shared = module == _SHARED or module.startswith(f"{_SHARED}.")
        return module.partition(".")[0] == self._package and not shared

    def _resolve(self, function: FunctionType, name: ast.Name | ast.Attribute) -> object:
        """What a name refers to: a global, an attribute of a module, or a method of the rule."""
        if isinstance(name, ast.Name):
            found = function.__globals__.get(name.id)
        elif isinstance(name.value, ast.Name) and name.value.id == "self":
            found = getattr(self._rule, name.attr, None)
        elif isinstance(name.value, ast.Name):
            found = getattr(function.__globals__.get(name.value.id), name.attr, None)
        else:
            found = None
        if isinstance(found, type) and not self._is_own(found.__module__):
            return None
        return found


def _names(function: FunctionType) -> Iterator[ast.Name | ast.Attribute]:
    """The names in a function, in the order of the source: what it may call or pass on."""
    tree = _tree(function)
    names = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute))]
    yield from sorted(names, key=lambda name: (name.lineno, name.col_offset))


def _tree(function: FunctionType) -> ast.AST:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return ast.Module([], [])
    tree = ast.parse(textwrap.dedent("".join(lines)))
    return ast.increment_lineno(tree, first - 1)


def _in_function(rule: type[Rule], function: FunctionType) -> Iterator[Sentence]:
    tree = _tree(function)
    texts = _Texts(rule, function, tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        position = _position_of_sentence(call, function)
        if position is None or len(call.args) <= position:
            continue
        for text in texts.of(call.args[position]):
            shown = text.replace("{}", "…").replace("{{", "{").replace("}}", "}")
            yield Sentence(shown, function.__code__.co_filename, call.lineno)


_POSITIONS = {Match.need.__name__: 1, Match.first.__name__: 2, Match.every.__name__: 2}


def _position_of_sentence(call: ast.Call, function: FunctionType) -> int | None:
    """The position of the argument that is a reason: 1 in `m.need(…)`, 2 in `m.first(…)` and
    `m.every(…)`, 0 in a `Miss` or in another exception of the rule's package, which becomes a Miss.
    """
    if isinstance(call.func, ast.Attribute):
        return _POSITIONS.get(call.func.attr)
    if not isinstance(call.func, ast.Name):
        return None
    called = function.__globals__.get(call.func.id)
    declines = isinstance(called, type) and issubclass(called, Exception)
    own = declines and not hasattr(builtins, call.func.id)
    return 0 if own else None


class _Texts:
    """The texts that an argument may be: a literal, a choice of two, or a name of one of these."""

    def __init__(self, rule: type[Rule], function: FunctionType, tree: ast.AST) -> None:
        self._rule = rule
        self._globals = function.__globals__
        assigned = (n for n in ast.walk(tree) if isinstance(n, ast.Assign))
        self._locals = {
            target.id: statement.value
            for statement in assigned
            for target in statement.targets
            if isinstance(target, ast.Name)
            and isinstance(statement.value, (ast.Constant, ast.JoinedStr))
        }

    def of(self, argument: ast.expr) -> Iterator[str]:
        if isinstance(argument, ast.Constant):
            yield from self._text(argument.value)
        elif isinstance(argument, ast.IfExp):
            yield from self.of(argument.body)
            yield from self.of(argument.orelse)
        elif isinstance(argument, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in argument.values)
            yield "".join(map(str, parts))
        elif isinstance(argument, ast.Attribute):
            yield from self._text(getattr(self._rule, argument.attr, None))
        elif isinstance(argument, ast.Name) and argument.id in self._locals:
            yield from self.of(self._locals[argument.id])
        elif isinstance(argument, ast.Name):
            yield from self._text(self._globals.get(argument.id))

    @staticmethod
    def _text(value: object) -> Iterator[str]:
        if isinstance(value, str) and value:
            yield value
