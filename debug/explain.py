"""Why control flow is left: for each If, Loop and Scan the rules that could remove it, and the
first of their checks that failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..arguments import Assertions, parse_assertions
from ..rewrite.engine import Engine, place_of
from ..rewrite.errors import AssumptionError
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.reasons import Reason, reasons_at
from ..rewrite.rule import Rule, describe
from ..rewrite.trace import Commit, Observer
from ..rewrite.views import LoopView
from .control import Reader
from .counts import CONTROL
from .effects import effect_of
from .mask_advice import mask_options
from .origin import Origin, dim_options, known
from .subject import Subject

FINDING = 1
_SUGGESTED = 5
"""Names that are told to somebody who asks for one that is not there."""


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
    """Options that would say more of the values the reason speaks of."""
    beyond: list[str] = field(default_factory=list)
    """What these values depend on that no option says anything of."""
    removes: bool = True
    """Whether the rule could remove such a node, or only makes it smaller."""
    checks: int = 0
    """How many checks hold where the rule fires, by its own example; 0 if that is not known."""
    root: str = ""
    """The node around it that the rule starts from; empty for the node itself."""

    @property
    def progress(self) -> float:
        """How far the rule got, from 0 to 1."""
        return self.passed / max(self.checks, self.passed + 1)


@dataclass
class Left:
    """An If, Loop or Scan, or a node that was asked for, that is left after rewriting."""

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
    defects: list[str] = field(default_factory=list)
    """Rules that raised or whose changes were undone, on the way."""
    asked: str = ""
    """The node that was asked for, if one was."""
    meant: list[int] = field(default_factory=list)
    """Its number; those of several where a name stands for them."""

    @property
    def status(self) -> int:
        """The exit status."""
        return FINDING if self.left else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def explain(
    subject: Subject, node: str = "", rule: str = "", assume: Sequence[str] = ()
) -> Explanation:
    """Why each If, Loop and Scan is left; or why one node (by name, label or output) is, whatever
    its operator; only for one rule if `rule` says so. `assume` are what-ifs such as "dim T=16".

    Raises AssumptionError for an assumption that does not fit, and for a node or rule that is not
    there.
    """
    assumed = replace(subject, assertions=with_assumptions(subject.assertions, assume))
    _check_rule(subject, rule)
    watch = _Watch(node)
    engine = assumed.engine(watch)
    engine.run()
    reasons = _Reasons(engine, rule, watch.values)
    left = [
        Left(
            describe(each), each.op, each.name, _names(each), place_of(engine.index, each),
            watch.numbers.get(each), reasons.of(each),
        )
        for each in _left(engine, node)
    ]  # fmt: skip
    return Explanation(
        sum(each.op in CONTROL and not each.domain for each in watch.numbers),
        left,
        watch.gone,
        list(assume),
        watch.labels,
        [f"{d.rule} at {d.node}: {d.reason}" for d in engine.trace.defects()],
        node,
        watch.meant,
    )


def with_assumptions(given: Assertions, assume: Iterable[str]) -> Assertions:
    """Assertions with more of them: `dim T=16`, `input sr=16000`, `shape x=1,T`, `prefix mask m`.

    Raises AssumptionError for other texts and for contradictions.
    """
    kinds: dict[str, list[str]] = {"dim": [], "input": [], "shape": [], "prefix mask": []}
    for text in assume:
        stripped = text.strip()
        kind = next((k for k in kinds if stripped.startswith(f"{k} ")), "")
        if not kind:
            raise AssumptionError(
                f"'{text}' assumes nothing",
                where="--assume",
                remedy='Write "dim T=16", "dim T>=1", "input sr=16000", "shape x=1,T" or '
                '"prefix mask m"',
            )
        kinds[kind].append(stripped.removeprefix(kind).strip())
    masks = kinds["prefix mask"]
    more = parse_assertions(kinds["input"], kinds["dim"], kinds["shape"], given.strict, masks)
    return Assertions(
        {**given.inputs, **more.inputs},
        (*given.dims, *more.dims),
        {**given.shapes, **more.shapes},
        given.strict,
        (*given.prefix_masks, *more.prefix_masks),
    )


def _check_rule(subject: Subject, rule: str) -> None:
    names = {each.name() for phase in subject.phases for each in phase.rules}
    if rule and rule not in names:
        raise AssumptionError(
            f"There is no rule '{rule}'", where="--rule", remedy="See: looplift rules"
        )


def _left(engine: Engine, asked: str) -> Iterator[Node]:
    """Outer nodes first, in the order in which they run."""
    for graph in engine.index.graphs(engine.model.graph):
        for node in graph.nodes:
            wanted = _is_meant(node, asked) if asked else node.op in CONTROL and not node.domain
            if wanted and node in engine.index:
                yield node


def _names(node: Node) -> list[str]:
    return [tensor.name for tensor in node.outputs if tensor.name]


def _is_meant(node: Node, text: str) -> bool:
    return text in (node.name, describe(node), *_names(node))


class _Watch(Observer):
    """Numbers the control flow of the file, or what was asked for, and notices how it goes."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self.numbers: dict[Node, int] = {}
        self.meant: list[int] = []
        self.labels: dict[int, str] = {}
        self.gone: dict[int, str] = {}
        self.values: set[str] = set()
        """The names of the values of the main graph."""

    def begins(self, engine: Engine) -> None:
        root = engine.model.graph
        self.values = {t.name for t in root.inputs} | {
            n for node in root.nodes for n in _names(node)
        }
        nodes = list(engine.index.walk())
        control = [node for node in nodes if node.op in CONTROL and not node.domain]
        asked = [node for node in nodes if self._asked and _is_meant(node, self._asked)]
        if self._asked and not asked:
            self._refuse(nodes, control)
        self.numbers = {node: number for number, node in enumerate(dict.fromkeys(control + asked))}
        self.meant = [self.numbers[node] for node in asked]
        self.labels = {number: describe(node) for node, number in self.numbers.items()}

    def _refuse(self, nodes: Sequence[Node], control: Sequence[Node]) -> None:
        named = {name for node in nodes for name in (node.name, *_names(node)) if name}
        near = difflib.get_close_matches(self._asked, sorted(named), _SUGGESTED)
        names = near or [describe(node) for node in control[:_SUGGESTED]]
        raise AssumptionError(
            f"There is no node '{self._asked}'",
            where="--node",
            remedy="Name one by its name or by a value it computes"
            + (f", such as {', '.join(names)}" if names else ""),
        )

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        for removed in patch.removed:
            if removed in self.numbers:
                self.gone[self.numbers[removed]] = f"{commit.rule} at step {commit.step}"


class _Reasons:
    """What the rules of a finished rewrite say, with what is known of the values they speak of."""

    def __init__(self, engine: Engine, only: str, values: set[str]) -> None:
        self._engine = engine
        self._only = only
        self._values = values
        self._reader = Reader(engine.facts)
        self._reader.tree(engine.model.graph)
        self._origins: dict[Tensor, Origin] = {}

    def of(self, node: Node) -> list[Why]:
        """Those that can remove such a node first, and those that got furthest first of them."""
        if node.op in CONTROL and not node.domain:
            found = [self._advised(reason) for reason in self._asked(node)]
        else:
            found = [*map(self._why, self._asked(node)), *self._around(node)]
        return sorted(found, key=lambda why: (not why.removes, -why.passed, -why.progress))

    def _asked(self, node: Node) -> list[Reason]:
        return [r for r in reasons_at(self._engine, node) if self._only in ("", r.rule)]

    def _around(self, node: Node) -> Iterator[Why]:
        """What rules that start from the control flow around a node say of it."""
        index = self._engine.index
        for graph in index.ancestors(index.graph_of(node)):
            owner = index.owner(graph)
            for reason in () if owner is None else self._asked(owner):
                spoken_of = {reason.place, *(v for v in reason.values if _is_place(v))}
                if owner is not None and not spoken_of.isdisjoint({node, *node.outputs}):
                    yield replace(self._advised(reason), root=describe(owner))

    def _advised(self, reason: Reason) -> Why:
        """With what would say more of the values that a check failed for."""
        why = self._why(reason)
        options = dim_options(reason.values) + mask_options(self._engine, reason, self._values)
        if isinstance(reason.place, Tensor):
            origin = self._origin(reason.place)
            options, why.beyond = origin.remedies + options, origin.beyond
        why.remedies = list(dict.fromkeys(options))
        return why

    def _why(self, reason: Reason) -> Why:
        effect = effect_of(reason.kind)
        why = Why(
            reason.rule, reason.phase, reason.passed, reason.sentence, reason.template, reason.at,
            self._value(reason.place), removes=effect.removes, checks=effect.checks,
        )  # fmt: skip
        decisive = _decisive(reason.place)
        if decisive is not None:
            why.chain = self._origin(decisive).lines()
        return why

    def _origin(self, tensor: Tensor) -> Origin:
        if tensor not in self._origins:
            self._origins[tensor] = Origin(self._engine.facts, tensor)
        return self._origins[tensor]

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


def _is_place(value: object) -> bool:
    return isinstance(value, (Node, Tensor))


def _decisive(place: Node | Tensor) -> Tensor | None:
    """The value that decides what a node does: condition, trip count, or a sequence scanned."""
    if not isinstance(place, Node):
        return place
    if place.op == "Loop":
        loop = LoopView(place)
        return loop.condition_out if loop.trip is None else loop.trip
    if place.op == "Scan" and place.inputs:
        return place.inputs[-1]
    return place.inputs[0] if place.op == "If" else None
