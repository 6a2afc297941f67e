"""Broken rules: what they do wrong is named, and the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

from .case import PLAIN_FILE, REWRITE, Case

_RULE = '''from looplift import Match, Phase, Rule

class Broken(Rule):
    """A rule."""
    root = "Neg"
    def match(self, m):
{match}
    def apply(self, patch, node):
{apply}

PHASES = (Phase("broken", (Broken,), "x"),)
'''
_PAIR = """from looplift import Phase, Rule

def swap(patch, node, op):
    patch.toward_normal_form()
    patch.replace_node(node, patch.node(op, node.inputs, node.outputs))

class First(Rule):
    root = "Neg"
    def match(self, m): return m.node
    def apply(self, patch, node): swap(patch, node, "Abs")

class Second(Rule):
    root = "Abs"
    def match(self, m): return m.node
    def apply(self, patch, node): swap(patch, node, "Neg")

PHASES = (Phase("broken", (First, Second), "x"),)
"""
_FOUND = "return m.node"

_MATCHES = {
    "1/0": "ZeroDivisionError",
    "raise KeyError": "KeyError",
    "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E()": "match raised E",
    "raise SystemExit(0)": "SystemExit",
    "raise GeneratorExit": "GeneratorExit",
    "raise MemoryError('x')": "MemoryError",
    "raise StopIteration": "StopIteration",
    "raise AssertionError('\\x1b[2J')": "\\x1b[2J",
    "return self.match(m)": "RecursionError",
    "return None": "returned None",
    "return 5": "apply raised AttributeError",
    "return [m.node]": "apply raised AttributeError",
    "m.node.op = 'Abs'\nreturn m.node": "outside of a patch",
    "m.node.op = 'Abs'\nm.need(False, 'x')": "outside of a patch",
    "m.node.inputs.clear()\nm.need(False, 'x')": "outside of a patch",
    "m.node.outputs[0].name = 'zz'\nm.need(False, 'x')": "outside of a patch",
    "m.node.attrs['axis'] = 7\nm.need(False, 'x')": "outside of a patch",
    "m.graph().nodes.clear()\nm.need(False, 'x')": "outside of a patch",
    "m.index.remove_node(m.node)\nm.need(False, 'x')": "outside of a patch",
    "m.need(False, 5)": "written",
    "m.need(False, 'a {} {} {')": "written",
    "m.need(False, '{0.x} {1}', m.node)": "written",
}
_APPLIES = {
    "raise ValueError('boom')": "boom",
    "raise SystemExit(0)": "SystemExit",
    "pass": "makes nothing smaller",
    "patch.remove(node)": "still read",
    "patch.replace(node.outputs[0], node.outputs[0])": "makes nothing smaller",
    "patch.replace(node.outputs[0], 'abc')": "is not a tensor",
    "patch.replace(node, node.inputs[0])": "is not a tensor",
    "node.inputs[0] = node.outputs[0]": "outside of a patch",
    "node.op = 'Abs'": "outside of a patch",
    "patch.node('Neg', ['x'], node.outputs)": "is not a tensor",
    "patch.node('Nosuch', node.inputs, node.outputs)": "rule failed",
    "patch.note(5)": "a note is a sentence",
    "patch.replace(node.outputs[0], patch.node('Shape', node.inputs, node.outputs)[0])": "rule failed",
}
_MODULES = {
    "x = 1": "lists no rules",
    "PHASES = 5": "lists no rules",
    "PHASES = (1, 2)": "lists no rules",
    "def (": "SyntaxError",
    "import sys; sys.exit(0)": "SystemExit",
    "1/0": "ZeroDivisionError",
    "raise GeneratorExit": "GeneratorExit",
    "def __getattr__(name): raise ValueError('x')": "ValueError: x",
    "import looplift\nPHASES = (looplift.Phase('p', 5, ''),)": "are 5",
    "import looplift\nPHASES = (looplift.Phase('p', (5,), ''),)": "not a rule",
    "import looplift\nPHASES = (looplift.Phase('p', (), '', before='nosuch'),)": "",
}


def cases() -> Iterator[Case]:
    number = 0
    for match, words in _MATCHES.items():
        number += 1
        yield _case(
            number,
            f"match: {match[:40]!r}",
            _rule(
                match, "pass" if "return 5" not in match and "[m" not in match else "node.outputs"
            ),
            0,
            words,
        )
    for apply, words in _APPLIES.items():
        number += 1
        yield _case(number, f"apply: {apply[:40]!r}", _rule(_FOUND, apply), 0, words)
    for module, words in _MODULES.items():
        number += 1
        if words:
            yield _case(number, f"module: {module[-40:]!r}", module, 2, words)
    grow = "patch.toward_normal_form()\nx = node.inputs[0]\nfor _ in range(3): x = patch.node('Neg', [x], node.outputs)[0]\npatch.replace_node(node, [x])"
    yield _case(
        900,
        "a rule that multiplies nodes",
        _rule(_FOUND, grow),
        2,
        "these rules keep firing: Broken",
    )
    yield _case(901, "two rules that undo each other", _PAIR, 2, "First, Second")


def _rule(match: str, apply: str) -> str:
    return _RULE.format(match=indent(match, 8 * " "), apply=indent(apply, 8 * " "))


def _case(number: int, name: str, source: str, status: int, words: str) -> Case:
    module = f"broken_rules_{number}"
    return Case(name, _writer(module, source), (*REWRITE, "--rules", module), status, (words,))


def _writer(module: str, source: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        PLAIN_FILE(folder)
        (folder / f"{module}.py").write_text(source)

    return write
