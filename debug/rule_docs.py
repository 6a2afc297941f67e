"""What a rule's class says of itself, for a reader: its example before and after, its reasons, its
near misses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.parser
import onnx.printer
from rich.console import RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..rewrite.engine.engine import Engine
from ..rewrite.engine.miss import Miss, describe
from ..rewrite.engine.rule import Match, Phase, Rule, fixture
from ..rewrite.errors import LoopliftError
from ..rewrite.storage.model import export_model, import_model
from ..rules.values.dead_nodes import EliminateIdentity
from .recording import source_of
from .rule_reasons import Sentence, sentences


@dataclass(frozen=True)
class NearMiss:
    """A model that the rule leaves as it is."""

    words: str
    """What the reason must contain."""
    model: str
    """In ONNX text."""
    reason: str
    at: str
    """What the reason speaks of."""


@dataclass
class RuleDoc:
    """The documentation of a rule."""

    name: str
    summary: str
    description: str
    """The rest of its docstring."""
    phases: list[str]
    roots: list[str]
    """Operators it starts from; `*` for all."""
    file: str
    line: int
    before: str
    """The model of its own that it fires on, in ONNX text; empty if it shows none."""
    after: str
    reasons: list[Sentence] = field(default_factory=list)
    """All reasons it can give, in the order in which they stand in its source."""
    near_misses: list[NearMiss] = field(default_factory=list)


def find_rule(name: str, phases: Sequence[Phase]) -> type[Rule]:
    """A rule by its name. Raises LoopliftError, naming similar ones, if there is none."""
    rules = {rule.name(): rule for phase in phases for rule in phase.rules}
    if name in rules:
        return rules[name]
    near = difflib.get_close_matches(name, rules, n=3)
    raise LoopliftError(
        f"There is no rule '{name}'",
        remedy=f"Similar: {', '.join(near)}" if near else "See: looplift rules list",
    )


def document(rule: type[Rule], phases: Sequence[Phase]) -> RuleDoc:
    """Reads a rule's class and runs its examples. Raises LoopliftError for one that is not ONNX."""
    file, line = source_of(rule)
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
    """The model that a rule shows, and what the rule makes of it, in ONNX text."""
    if not rule.fires:
        return "", ""
    model = _example(rule, rule.fires)
    return model_text(model), model_text(export_model(run_alone(rule, model).model))


def model_text(model: onnx.ModelProto) -> str:
    """The graph in ONNX text, without what a parsed example has in its header anyway."""
    return onnx.printer.to_text(model.graph).strip()


def _example(rule: type[Rule], text: str) -> onnx.ModelProto:
    try:
        return fixture(text)
    except onnx.parser.ParseError as error:
        raise LoopliftError(
            f"An example of the rule is not ONNX text: {str(error).strip()}",
            where=f"rule {rule.name()}",
            remedy="Correct its `fires` or `spares`",
        ) from error


def run_alone(rule: type[Rule], model: onnx.ModelProto) -> Engine:
    """A rule without the others, on its example; with the removal of copies if it needs that.

    Text cannot say that a branch returns an outer value; without copies the branch does.
    """
    engine = run_rules(model, rule)
    return engine if engine.trace.commits() else run_rules(model, EliminateIdentity, rule)


def run_rules(model: onnx.ModelProto, *rules: type[Rule]) -> Engine:
    """A finished rewrite by these rules only."""
    engine = Engine(import_model(model), (Phase("example", rules, ""),))
    engine.run()
    return engine


def _near_miss(rule: type[Rule], words: str, text: str) -> NearMiss:
    model = _example(rule, text)
    for miss, at in misses(rule, run_rules(model)):
        if words in str(miss):
            return NearMiss(words, model_text(model), str(miss), at)
    return NearMiss(words, model_text(model), "", "")


def misses(rule: type[Rule], engine: Engine) -> Iterator[tuple[Miss, str]]:
    """Why a rule does not fire at each node it could start from, and what each reason is about."""
    roots = rule.roots()
    for node in engine.index.walk():
        if "*" in roots or (node.op in roots and not node.domain):
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
        Text(f"starts from {roots}; phases: {', '.join(doc.phases)}", style="dim"),
        Text(f"{doc.file}:{doc.line}", style="dim"),
    ]
    if doc.description:
        parts.append(Text(f"\n{doc.description}"))
    if doc.before:
        parts += _titled("Before", _onnx(doc.before)) + _titled("After", _onnx(doc.after))
    if doc.reasons:
        parts += _titled("Why it may not fire", _reasons(doc.reasons))
    for near in doc.near_misses:
        title = f"Left alone: {near.reason or near.words}" + (f" (at {near.at})" if near.at else "")
        parts += _titled(title, _onnx(near.model))
    return parts


def _titled(title: str, content: RenderableType) -> list[RenderableType]:
    return [Text(f"\n{title}", style="bold"), content]


def _onnx(text: str) -> RenderableType:
    return Syntax(text, "text", background_color="default", word_wrap=True)


def _reasons(reasons: Sequence[Sentence]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", justify="right")
    table.add_column()
    for reason in reasons:
        table.add_row(str(reason.line), Text(reason.text))
    return table


# --- the table of contents ---


def contents(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Phases and rules in order, for programs."""
    return [
        {
            "phase": phase.name,
            "summary": phase.summary,
            "rules": [{"name": rule.name(), "summary": rule.summary()} for rule in phase.rules],
        }
        for phase in phases
    ]


def render_contents(phases: Sequence[Phase]) -> list[RenderableType]:
    """Phases and rules in order, one line each."""
    parts: list[RenderableType] = []
    for phase in phases:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for rule in phase.rules:
            table.add_row(f"  {rule.name()}", Text(rule.summary()))
        parts += [Text.assemble((phase.name, "bold"), f": {phase.summary}"), table]
    return parts
