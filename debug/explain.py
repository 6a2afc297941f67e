"""Why control flow is left: for each If, Loop and Scan the rules that could remove it, and the
first of their checks that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..arguments import Assertions, parse_assertions
from ..rewrite.engine import Engine, place_of
from ..rewrite.errors import AssumptionError
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import ANY, Miss, Rule, describe
from ..rewrite.trace import Commit, Observer
from ..rewrite.views import LoopView
from .control import Reader
from .counts import CONTROL
from .effects import CountingMatch, effect_of
from .origin import Origin, known
from .subject import Subject

FINDING = 1
MOST_RULES = 4
"""Rules shown for one node in the terminal."""
COMMONEST = 10


@dataclass
class Why:
    """Why one rule does not fire at one node."""

    rule: str
    phase: str
    passed: int
    """Checks that held before the one that failed."""
    reason: str
    template: str
    """The reason without its values: equal for all models."""
    at: str
    """The value or node the reason speaks of."""
    value: str
    """What is known of it."""
    chain: list[str] = field(default_factory=list)
    """Where it comes from, nearest first."""
    remedies: list[str] = field(default_factory=list)
    """Options that would say more of what it comes from."""
    removes: bool = True
    """Whether the rule could remove such a node, or only makes it smaller."""
    checks: int = 0
    """How many checks hold where the rule fires, by its own example; 0 if that is not known."""

    @property
    def progress(self) -> float:
        """How far the rule got, from 0 to 1."""
        return self.passed / max(self.checks, self.passed + 1)


@dataclass
class Left:
    """An If, Loop or Scan that is left after rewriting."""

    node: str
    op: str
    name: str
    outputs: list[str]
    place: str
    """The body it stands in; empty for the main graph."""
    number: int | None
    """Its place among the nodes of the file, bodies before their owners; None if a rule made it."""
    why: list[Why] = field(default_factory=list)


@dataclass
class Explanation:
    """What is left of a model's control flow, and what went."""

    before: int
    """Ifs, Loops and Scans of the file."""
    left: list[Left]
    gone: dict[int, str] = field(default_factory=dict)
    """For those that went, by number: `RULE at step N`."""
    assumed: list[str] = field(default_factory=list)
    """What-ifs that this answers."""
    labels: dict[int, str] = field(default_factory=dict)
    """How to point at those of the file."""

    @property
    def status(self) -> int:
        """The exit status."""
        return FINDING if self.left else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def explain(
    subject: Subject, node: str = "", rule: str = "", assume: Sequence[str] = ()
) -> Explanation:
    """Why each If, Loop and Scan is left; only one (by name, label or output) if `node` says so,
    only for one rule if `rule` does. `assume` are what-ifs such as "dim T=16".

    Raises AssumptionError for an assumption that does not fit, and for a node or rule that is not
    there.
    """
    assumed = replace(subject, assertions=with_assumptions(subject.assertions, assume))
    _check_rule(subject, rule)
    watch = _Watch()
    engine = assumed.engine(watch)
    engine.run()
    found = Explanation(len(watch.numbers), [], dict(watch.gone), list(assume), dict(watch.labels))
    reader = _Reasons(engine, rule)
    for each in _left(engine):
        left = Left(
            describe(each), each.op, each.name, [t.name for t in each.outputs if t.name],
            place_of(engine.index, each), watch.numbers.get(each),
        )  # fmt: skip
        if not node or _is_meant(left, node):
            left.why = reader.of(each)
            found.left.append(left)
    if node and not found.left and not any(node in label for label in watch.labels.values()):
        raise AssumptionError(
            f"There is no If, Loop or Scan '{node}'",
            where="--node",
            remedy="Name one by its name or by a value it computes: "
            + (", ".join(list(watch.labels.values())[:5]) or "the model has none"),
        )
    return found


def with_assumptions(given: Assertions, assume: Iterable[str]) -> Assertions:
    """Assertions with more of them: `dim T=16`, `input sr=16000`, `shape x=1,T`.

    Raises AssumptionError for other texts and for contradictions.
    """
    kinds: dict[str, list[str]] = {"dim": [], "input": [], "shape": []}
    for text in assume:
        kind, _, rest = text.strip().partition(" ")
        if kind not in kinds or not rest:
            raise AssumptionError(
                f"'{text}' assumes nothing",
                where="--assume",
                remedy='Write "dim T=16", "dim T>=1", "input sr=16000" or "shape x=1,T"',
            )
        kinds[kind].append(rest.strip())
    more = parse_assertions(kinds["input"], kinds["dim"], kinds["shape"], given.strict)
    return Assertions(
        {**given.inputs, **more.inputs},
        (*given.dims, *more.dims),
        {**given.shapes, **more.shapes},
        given.strict,
    )


def _check_rule(subject: Subject, rule: str) -> None:
    names = {each.name() for phase in subject.phases for each in phase.rules}
    if rule and rule not in names:
        raise AssumptionError(
            f"There is no rule '{rule}'", where="--rule", remedy="See: looplift rules"
        )


def _left(engine: Engine) -> Iterator[Node]:
    """Outer nodes first, in the order in which they run."""
    for graph in engine.index.graphs(engine.model.graph):
        for node in graph.nodes:
            if node.op in CONTROL and not node.domain and node in engine.index:
                yield node


def _is_meant(left: Left, text: str) -> bool:
    return text in (left.name, left.node, *left.outputs)


class _Watch(Observer):
    """Numbers the control flow of the file, and notices which rule makes it go."""

    def __init__(self) -> None:
        self.numbers: dict[Node, int] = {}
        self.labels: dict[int, str] = {}
        self.gone: dict[int, str] = {}

    def begins(self, engine: Engine) -> None:
        nodes = (n for n in engine.index.walk() if n.op in CONTROL and not n.domain)
        self.numbers = {node: number for number, node in enumerate(nodes)}
        self.labels = {number: describe(node) for node, number in self.numbers.items()}

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        for removed in patch.removed:
            if removed in self.numbers:
                self.gone[self.numbers[removed]] = f"{commit.rule} at step {commit.step}"


class _Reasons:
    """Asks the rules of a finished rewrite once more, and listens."""

    def __init__(self, engine: Engine, only: str) -> None:
        self._engine = engine
        self._only = only
        self._reader = Reader(engine.facts)
        self._reader.tree(engine.model.graph)

    def of(self, node: Node) -> list[Why]:
        """Those that can remove such a node first, and those that got furthest first of them."""
        found = [why for phase, rule in self._rules(node) for why in self._ask(phase, rule, node)]
        return sorted(found, key=lambda why: (not why.removes, -why.passed, -why.progress))

    def _rules(self, node: Node) -> list[tuple[str, type[Rule]]]:
        firsts: dict[type[Rule], str] = {}
        for phase in self._engine.phases:
            for rule in phase.rules:
                roots = (rule.root,) if isinstance(rule.root, str) else rule.root
                if node.op in roots and ANY not in roots and self._only in ("", rule.name()):
                    firsts.setdefault(rule, phase.name)
        return [(phase, rule) for rule, phase in firsts.items()]

    def _ask(self, phase: str, rule: type[Rule], node: Node) -> Iterator[Why]:
        effect = effect_of(rule)
        match = CountingMatch(node, self._engine)
        try:
            rule().match(match)
        except Miss as miss:
            at = miss.at if miss.at is not None else node
            why = Why(
                rule.name(), phase, match.passed, str(miss), miss.sentence, describe(at),
                self._value(at), removes=effect.removes, checks=effect.checks,
            )  # fmt: skip
            decisive = at if isinstance(at, Tensor) else _decisive(at)
            if decisive is not None:
                origin = Origin(self._engine.facts, decisive)
                why.chain = origin.lines()
                why.remedies = list(dict.fromkeys(origin.remedies()))
            yield why
            return
        except Exception as error:  # noqa: BLE001  a user's rule may raise anything: told
            reason = f"its match raises {type(error).__name__}: {error}"
            yield Why(
                rule.name(), phase, match.passed, reason, reason, describe(node),
                self._value(node), removes=effect.removes, checks=effect.checks,
            )  # fmt: skip
            return
        for defect in self._engine.trace.defects():
            if defect.rule == rule.name() and defect.node == describe(node):
                reason = f"it fires, but its change is wrong and was undone: {defect.reason}"
                yield Why(
                    rule.name(), phase, match.passed, reason, reason, describe(node),
                    self._value(node),
                )  # fmt: skip

    def _value(self, at: Node | Tensor) -> str:
        """What is known of a value; of a node what decides over it."""
        if not isinstance(at, Node):
            return known(self._engine.facts, at)
        about = self._reader.described.get(at)
        if about is None:
            return ", ".join(known(self._engine.facts, t) for t in at.outputs if t.name)
        parts = [f"condition {about.condition}"] if about.condition else []
        if at.op != "If":
            parts.append(f"trip count {about.trip or 'unknown'}")
            parts += [f"state `{s.name}`: {s.type}" for s in about.states[:3]]
        return "; ".join(parts)


def _decisive(node: Node) -> Tensor | None:
    """The value that decides what a node does: condition, trip count, or a sequence scanned."""
    if node.op == "Loop":
        loop = LoopView(node)
        return loop.condition_out if loop.trip is None else loop.trip
    if node.op == "Scan" and node.inputs:
        return node.inputs[-1]
    return node.inputs[0] if node.op == "If" else None


# --- many models ---


@dataclass
class Common:
    """A reason and how often it is the first one given."""

    rule: str
    template: str
    times: int
    models: int
    example: str


def commonest(
    explanations: Sequence[tuple[Path, Explanation]], most: int = COMMONEST
) -> list[Common]:
    """The reasons that most nodes are left for, each node counting for its first."""
    times: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], set[Path]] = {}
    examples: dict[tuple[str, str], str] = {}
    for path, explanation in explanations:
        for left in explanation.left:
            if left.why:
                first = left.why[0]
                key = (first.rule, first.template)
                times[key] += 1
                models.setdefault(key, set()).add(path)
                examples.setdefault(key, f"{path.name}, {left.node}: {first.reason}")
    return [
        Common(rule, template, count, len(models[rule, template]), examples[rule, template])
        for (rule, template), count in times.most_common(most)
    ]


# --- for the terminal ---


def render(found: Explanation, title: str, everything: bool = False) -> list[RenderableType]:
    """A tree: nodes, the rules that could remove them, the check that failed."""
    count = f"{len(found.left)} of {found.before} left" if found.before else "no control flow"
    tree = Tree(Text(f"{title}: {count}", style="bold"))
    for text in found.assumed:
        tree.add(Text(f"assuming {text}", style="cyan"))
    for left in found.left:
        place = f" in {left.place}" if left.place else ""
        branch = tree.add(Text(f"{left.node}{place}", style="bold cyan"))
        shown = _shown(left.why, everything)
        for number, why in enumerate(shown):
            _add(branch, why, in_full=everything or not number)
        if len(left.why) > len(shown):
            more = f"{len(left.why) - len(shown)} more rules with --all"
            branch.add(Text(more, style="dim"))
    parts: list[RenderableType] = [tree]
    if found.assumed:
        parts += [
            Text(f"goes: {found.labels[number]} ({how})", style="green")
            for number, how in found.gone.items()
        ]
    return parts


def _shown(whys: Sequence[Why], everything: bool) -> Sequence[Why]:
    if everything:
        return whys
    telling = [why for why in whys if why.removes]
    return (telling or whys)[:MOST_RULES]


def _add(tree: Tree, why: Why, in_full: bool) -> None:
    total = f" of {why.checks}" if why.checks > why.passed else ""
    checks = f"{why.passed}{total} checks passed"
    branch = tree.add(Text.assemble((why.rule, "yellow"), f" ({checks}): {why.reason}"))
    if not in_full:
        return
    if why.value:
        branch.add(Text(f"at {why.at}: {why.value}"))
    for line in why.chain:
        branch.add(Text(f"from {line}", style="dim"))
    if why.remedies:
        branch.add(Text(f"say more with {' or '.join(why.remedies)}", style="green"))


def render_commonest(reasons: Sequence[Common], title: str) -> list[RenderableType]:
    """A table of reasons."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("nodes", justify="right")
    table.add_column("models", justify="right")
    table.add_column("rule", style="yellow")
    table.add_column("reason")
    for each in reasons:
        reason = Text(each.template).append(f"\n{each.example}", style="dim")
        table.add_row(str(each.times), str(each.models), each.rule, reason)
    return [table]
