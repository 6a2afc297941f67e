"""Documents a rule from its class: an example before and after, the reasons, near misses."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.printer
from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..rewrite.engine.engine import Engine
from ..rewrite.engine.miss import Miss, describe
from ..rewrite.engine.rule import Match, Phase, Rule, fixture
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.model import export_model, import_model
from ..rules.values.dead_nodes import EliminateIdentity
from .rule_reasons import Sentence, sentences
from .trace_writer import match_line

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class NearMiss:
    """A model that the rule declines."""

    words: str
    """Words of the reason."""
    model: str
    """In ONNX text."""
    reason: str
    at: str
    """The value or node that the reason is about."""


@dataclass
class RuleDoc:
    """The documentation of a rule."""

    name: str
    summary: str
    description: str
    """The rest of its docstring."""
    phases: list[str]
    roots: list[str]
    """The operators that it is tried at; `*` for all."""
    file: str
    line: int
    before: str
    """The model of `fires`, in ONNX text; empty if the rule has none."""
    after: str
    reasons: list[Sentence] = field(default_factory=list)
    """All reasons to decline, in the order of the source."""
    near_misses: list[NearMiss] = field(default_factory=list)


def find_rule(name: str, phases: Sequence[Phase]) -> type[Rule]:
    """A rule by its name. Raises LoopliftError with similar names if there is none."""
    rules = {rule.name(): rule for phase in phases for rule in phase.rules}
    if name in rules:
        return rules[name]
    near = difflib.get_close_matches(name, rules, n=3)
    raise LoopliftError(
        f"There is no rule '{name}'",
        remedy=f"Similar rules: {', '.join(near)}" if near else "See: looplift rules list",
    )


def document(rule: type[Rule], phases: Sequence[Phase]) -> RuleDoc:
    """Reads the class of a rule and runs its fixtures.

    Raises LoopliftError for a fixture that is not ONNX text.
    """
    file, line = match_line(rule)
    before, after = before_and_after(rule)
    return RuleDoc(
        name=rule.name(),
        summary=rule.summary(),
        description=_description(rule),
        phases=[phase.name for phase in phases if rule in phase.rules],
        roots=list(rule.roots()),
        file=file,
        line=line,
        before=before,
        after=after,
        reasons=sentences(rule),
        near_misses=[_near_miss(rule, words, text) for words, text in rule.spares.items()],
    )


def _description(rule: type[Rule]) -> str:
    _, _, rest = (rule.__doc__ or "").strip().partition("\n")
    lines = [line.strip() for line in rest.strip().splitlines()]
    return "\n".join(lines)


def before_and_after(rule: type[Rule]) -> tuple[str, str]:
    """The model of `fires` and the result of the rule, in ONNX text."""
    if not rule.fires:
        return "", ""
    model = fixture_of(rule, rule.fires)
    return model_text(model), model_text(export_model(run_alone(rule, model).model))


def model_text(model: onnx.ModelProto) -> str:
    """The graph in ONNX text, without the header."""
    return onnx.printer.to_text(model.graph).strip()


def fixture_of(rule: type[Rule], text: str) -> onnx.ModelProto:
    """Parses a fixture of a rule. Raises ModelError for invalid text."""
    return fixture(text, where=f"rule {rule.name()}")


def run_alone(rule: type[Rule], model: onnx.ModelProto) -> Engine:
    """Runs a rule on its fixture, if needed together with the removal of Identities.

    ONNX text cannot express a branch that returns an outer value without an Identity.
    """
    engine = run_rules(model, rule)
    return engine if engine.trace.commits() else run_rules(model, EliminateIdentity, rule)


def run_rules(model: onnx.ModelProto, *rules: type[Rule]) -> Engine:
    """Runs only these rules, in one phase; returns the finished engine."""
    engine = Engine(import_model(model), (Phase("fixture", rules, ""),))
    engine.run()
    return engine


def _near_miss(rule: type[Rule], words: str, text: str) -> NearMiss:
    model = fixture_of(rule, text)
    for miss, at in misses(rule, run_rules(model)):
        if words in str(miss):
            return NearMiss(words, model_text(model), str(miss), at)
    return NearMiss(words, model_text(model), "", "")


def misses(rule: type[Rule], engine: Engine) -> Iterator[tuple[Miss, str]]:
    """Why a rule declines at each of its roots, and what each reason is about, in words."""
    for node in engine.index.walk():
        if rule.is_tried_at(node):
            try:
                rule().match(Match(node, engine.facts, engine.options))
            except Miss as miss:
                yield miss, describe(miss.at if miss.at is not None else node)


# --- for the terminal ---


def render(doc: RuleDoc) -> list[RenderableType]:
    """The whole documentation."""
    roots = "any operator" if "*" in doc.roots else ", ".join(doc.roots)
    parts: list[RenderableType] = [
        Text.assemble((doc.name, "bold"), f": {doc.summary}"),
        Text(f"root: {roots}; phases: {', '.join(doc.phases)}", style="dim"),
        Text(f"{doc.file}:{doc.line}", style="dim"),
    ]
    if doc.description:
        parts.append(Group(Text(f"\n{doc.description}")))
    if doc.before:
        parts += _titled("Before", _onnx(doc.before)) + _titled("After", _onnx(doc.after))
    if doc.reasons:
        parts += _titled("Reasons to decline", _reasons(doc))
    for near in doc.near_misses:
        title = f"Declines: {near.reason or near.words}" + (f" (at {near.at})" if near.at else "")
        parts += _titled(title, _onnx(near.model))
    return parts


def _titled(title: str, content: RenderableType) -> list[RenderableType]:
    return [Group(Text(f"\n{title}", style="bold")), content]


def _onnx(text: str) -> RenderableType:
    return Syntax(text, "text", background_color="default", word_wrap=True)


def _reasons(doc: RuleDoc) -> Table:
    """Each reason with its line, and with its file unless that is the rule's own."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", justify="right")
    table.add_column()
    for reason in doc.reasons:
        file = os.path.relpath(reason.file, Path(doc.file).parent)
        place = str(reason.line) if reason.file == doc.file else f"{file}:{reason.line}"
        table.add_row(Text(place), Text(reason.text))
    return table


# --- the table of contents ---


def contents(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Phases and rules in order, for programs; user rules with their module."""
    return [
        {
            "phase": phase.name,
            "summary": phase.summary,
            "module": module_of(*phase.rules),
            "rules": [
                {"name": rule.name(), "summary": rule.summary(), "module": module_of(rule)}
                for rule in phase.rules
            ],
        }
        for phase in phases
    ]


def render_contents(phases: Sequence[Phase]) -> list[RenderableType]:
    """Phases and rules in order, one line each. User rules are marked with their module and the
    position they ask for.
    """
    parts: list[RenderableType] = []
    for phase in phases:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        phase_module = module_of(*phase.rules)
        for rule in phase.rules:
            module = "" if phase_module else module_of(rule)
            table.add_row(f"  {rule.name()}", Text(rule.summary() + _origin(rule, module)))
        title = Text.assemble((phase.name, "bold"), f": {phase.summary}")
        parts += [title.append(_origin(phase, phase_module)), table]
    return parts


def module_of(*rules: type[Rule]) -> str:
    """The module of rules if none of them is looplift's; otherwise empty."""
    modules = list(dict.fromkeys(rule.__module__ for rule in rules))
    is_own = any(module.startswith(f"{_PACKAGE}.") for module in modules)
    return "" if is_own else ", ".join(modules)


def _origin(thing: Phase | type[Rule], module: str) -> str:
    """` (my_rules, before FoldConstants)` for a rule or phase of a user; otherwise empty."""
    parts = [module] if module else []
    parts += [f"before {thing.before}"] if thing.before else []
    parts += [f"after {thing.after}"] if thing.after else []
    return f" ({', '.join(parts)})" if parts else ""
