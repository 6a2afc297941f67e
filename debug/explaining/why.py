"""Why rules do not fire at a node, with what is known of the values they speak of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ...rewrite.engine.engine import Engine
from ...rewrite.engine.miss import describe
from ...rewrite.engine.reasons import Reason, reasons_at
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView
from ...rules.recurrence.lifting import FLOATS
from ..control import Reader
from ..counts import CONTROL
from .effects import effect_of
from .mask_advice import mask_options
from .origin import Origin, dim_options, known


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
    recasts: bool = False
    """Whether it could only turn it into another operator of control flow."""
    ends: bool = True
    """Whether less control flow would be left."""
    checks: int = 0
    """How many checks hold where the rule fires, by its own example; 0 if that is not known."""
    root: str = ""
    """The node around it that the rule starts from; empty for the node itself."""

    @property
    def progress(self) -> float:
        """How far the rule got, from 0 to 1."""
        return self.passed / max(self.checks, self.passed + 1)


class Reasons:
    """What the rules of a finished rewrite say, with what is known of the values they speak of."""

    def __init__(self, engine: Engine, only: str, values: set[str]) -> None:
        self._engine = engine
        self._only = only
        self._values = values
        self._reader = Reader(engine.facts)
        self._reader.tree(engine.model.graph)
        self._origins: dict[Tensor, Origin] = {}

    def of(self, node: Node) -> list[Why]:
        """Those that can remove such a node first, and those that got furthest first of them.

        Of a loop that carries numbers from step to step one wants to know first why it is no
        recurrence, sum or other operator, then why it keeps its form as a Loop.
        """
        if node.op in CONTROL and not node.domain:
            found = [self._advised(reason) for reason in self._asked(node)]
        else:
            found = [*map(self._why, self._asked(node)), *self._around(node)]
        found.sort(key=lambda why: (not why.removes, -why.passed, -why.progress))
        ends = next((why for why in found if why.ends), None)
        if ends is not None and found[0].recasts and self._carries_numbers(node):
            found.remove(ends)
            found.insert(0, ends)
        return found

    def furthest(self, nodes: Iterable[Node], most: int) -> list[tuple[Node, list[Why]]]:
        """The nodes where the rules got furthest, one for each reason, `most` at most."""
        firsts: dict[tuple[str, str], tuple[Node, Reason]] = {}
        for node in nodes:
            for reason in self._asked(node):
                key = reason.rule, reason.template
                if key not in firsts or reason.passed > firsts[key][1].passed:
                    firsts[key] = node, reason
        found = sorted(firsts.values(), key=lambda first: -first[1].passed)[:most]
        return [(node, [self._advised(reason)]) for node, reason in found]

    def _carries_numbers(self, node: Node) -> bool:
        facts = self._engine.facts
        steps = (
            counted_loop(facts, node) if node.op in ("Loop", "Scan") and not node.domain else None
        )
        return steps is not None and any(facts.dtype(s.input) in FLOATS for s in steps.carried)

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
            self._value(reason.place), removes=effect.removes, recasts=effect.recasts,
            ends=effect.ends, checks=effect.checks,
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
