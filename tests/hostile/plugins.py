"""Hostile packages: what an installed package may offer as rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .case import PLAIN_FILE, REWRITE, Case

_RULE = """
from looplift import Phase, Rule

class Offered(Rule):
    "Replaces Neg."
    root = "Neg"
    def match(self, m): return m.node
    def apply(self, patch, node): raise ValueError("\\x1b[2J\\nnote: all is well")

PHASES = (Phase("offered", (Offered,), "Offered."),)
"""
_OFFERED = "[looplift.rules]\nmine = {module}\n"
_FAILING = "The rules of an installed package cannot be imported"

_MODULES = {
    "a rule that raises control characters": (_RULE, 0, "ValueError"),
    "a module that ends the process": ("import os, sys\nsys.exit(0)", 2, "SystemExit: 0"),
    "a module that raises control characters": (
        "raise ValueError('\\x1b[2J\\nnote: all is well')",
        2,
        _FAILING,
    ),
    "a module that is interrupted": ("raise GeneratorExit", 2, "GeneratorExit"),
    "a module that lacks another": ("import no_such_module_at_all", 2, "No module named"),
    "a module without rules": ("x = 1", 2, "lists no rules"),
    "a module that is no Python": ("\x00\x01", 2, _FAILING),
    "phases of another type": ("PHASES = {'a': 1}", 2, "lists no rules"),
    "phases that cannot be looked up": (
        "def __getattr__(name): raise RuntimeError('no')",
        2,
        "RuntimeError: no",
    ),
    "a rule next to one that there is not": (
        _RULE.replace('root = "Neg"', 'root = "Neg"\n    before = "NoSuchRule"'),
        2,
        "NoSuchRule, which is not a rule",
    ),
    "a phase with the name of another": (_RULE.replace('"offered"', '"loops"'), 0, ""),
    "a rule with the name of another": (_RULE.replace("Offered(", "FuseRecurrence("), 0, ""),
}
_ENTRIES = {
    "an attribute that there is not": ("mine = plugin_rules:NOTHING", 2, _FAILING),
    "an attribute of an attribute": ("mine = plugin_rules:PHASES.a.b", 2, _FAILING),
    "a module that there is not": ("mine = no_such_plugin", 2, _FAILING),
    "a name of control characters": ("\x1b[2J = no_such_plugin", 2, _FAILING),
    "a value of control characters": ("mine = \x1b[2J", 2, ""),
    "no value": ("mine =", 2, ""),
    "a path": ("mine = ../../etc/passwd", 2, ""),
    "an entry of 100,000 letters": (f"mine = {'a' * 100_000}", 2, ""),
    "the same phases ten times": (
        "\n".join(f"m{k} = plugin_rules" for k in range(10)),
        0,
        "",
    ),
}


def cases() -> Iterator[Case]:
    for number, (name, (source, status, words)) in enumerate(_MODULES.items()):
        if name == "a rule with the name of another":
            source = source.replace("(Offered,)", "(FuseRecurrence,)")
        module = f"plugin_rules_{number}"
        write = _package(_OFFERED.format(module=module), module, source)
        yield Case(f"plugin: {name}", write, REWRITE, status, (words,))
    for name, (entry, status, words) in _ENTRIES.items():
        write = _package(f"[looplift.rules]\n{entry}\n", "plugin_rules", _RULE)
        yield Case(f"plugin with {name}", write, REWRITE, status, (words,))
    for name, text in (("nothing", ""), ("no sections", "mine = a"), ("noise", "\x00]\n[[=\n=")):
        write = _package(text, "plugin_rules", _RULE)
        yield Case(f"plugin whose entry points are {name}", write, REWRITE, 0)


def _package(entries: str, module: str, source: str) -> Callable[[Path], None]:
    """Writes the model, and an installed package into the folder that Python imports from."""

    def write(folder: Path) -> None:
        PLAIN_FILE(folder)
        (folder / f"{module}.py").write_text(source)
        info = folder / "hostile-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries)

    return write
