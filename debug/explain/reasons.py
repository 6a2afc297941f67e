"""Why rules do not fire at a node, with the facts of the values that the reasons are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ...rewrite.engine.engine import Engine
from ...rewrite.engine.miss import describe
from ...rewrite.engine.reasons import Reason, reasons_at
from ...rewrite.engine.rule import Rule
from ...rewrite.facts.assertions import Assertions
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView
from ...rewrite.storage.summary import CONTROL_FLOW
from ...rules.branches.decided_if import InlineDecidedIf
from ...rules.branches.if_to_where import IfToWhere
from ...rules.loops.sequence_accumulation import SequenceInsertToScanOutput
from ...rules.recurrence import FuseRecurrence
from ...rules.vectorization.after_loop import VectorizeAfterLoop
from ..control_flow import NO_TRIP_LIMIT, ControlFlowReader
from ..fact_text import value_text
from .advice import (
    Derivation,
    EqualDims,
    Remedy,
    dim_remedies,
    equal_dims,
    mask_remedies,
    maybe_empty,
    sizes_that_run,
)
from .rule_effects import effect_of
from .trials import candidates


@dataclass
class ExplainedReason:
    """Why one rule does not fire at one node, with facts and advice."""

    rule: str
    phase: str
    passed: int
    """The checks that passed before the one that failed."""
    reason: str
    template: str
    """The reason without its values: the same for all models."""
    at: str
    """The value or node that the reason is about."""
    value: str
    """The facts of that value or node."""
    derivation: list[str] = field(default_factory=list)
    """Where the value comes from, nearest first."""
    remedies: list[str] = field(default_factory=list)
    """Options that assert something about these values. Whether one of them helps is the result of
    a trial; see `RemainingNode.trials`."""
    unassertable: list[str] = field(default_factory=list)
    """What these values depend on that no option can assert."""
    removes: bool = True
    """Whether the rule can remove such a node; otherwise it only simplifies the node."""
    converts: bool = False
    """Whether the rule only turns the node into another control-flow operator."""
    reduces: bool = True
    """Whether less control flow would remain."""
    checks: int = 0
    """The checks that pass when the rule fires on its fixture; 0 if that is not known."""
    root: str = ""
    """The root of the rule if that is a node around the explained one; otherwise empty."""

    @property
    def progress(self) -> float:
        """The share of checks that passed, from 0 to 1."""
        return self.passed / max(self.checks, self.passed + 1)


class Reasons:
    """The reasons of all rules of a finished rewrite, or of one rule."""

    def __init__(self, engine: Engine, rule: str, values: set[str]) -> None:
        """`values` are the names of the values of the main graph in the file."""
        self._engine = engine
        self._rule = rule
        self._values = values
        self._reader = ControlFlowReader(engine.facts)
        self._reader.tree(engine.model.graph)
        self._derivations: dict[Tensor, Derivation] = {}
        self._remedies: dict[Node, dict[Remedy | EqualDims, list[float]]] = {}
        """What the user can assert about a node, with the numbers that it is compared with."""

    def of(self, node: Node) -> list[ExplainedReason]:
        """The reasons at a node: first the one of the rule that would remove the whole node.

        Then come the other rules that can remove the node, by the checks that passed.
        """
        if node.op in CONTROL_FLOW and not node.domain:
            found = [self._with_advice(node, reason) for reason in self._asked(node)]
        else:
            found = [*map(self._explained, self._asked(node)), *self._around(node)]
        order = {rule.name(): position for position, rule in enumerate(self._leading(node))}
        found.sort(
            key=lambda each: (
                order.get(each.rule, len(order)), not each.removes, -each.passed, -each.progress
            )
        )  # fmt: skip
        return found

    def _leading(self, node: Node) -> tuple[type[Rule], ...]:
        """The rules whose reasons come first at control flow: they remove a whole If or recurrence,
        or compute what a loop that carries nothing collects.
        """
        if node.domain or node.op not in CONTROL_FLOW:
            return ()
        if node.op == "If":
            return (InlineDecidedIf, IfToWhere)
        described = self._reader.described.get(node)
        if described is not None and not described.carried:
            return (VectorizeAfterLoop,)
        if self._carries_sequence(node):
            return (SequenceInsertToScanOutput, FuseRecurrence)
        return (FuseRecurrence,)

    def candidates(self, node: Node) -> list[Assertions]:
        """The assertions that may help at a node; see `trials.candidates`."""
        facts, wanted = self._engine.facts, dict(self._remedies.get(node, {}))
        found = sizes_that_run(facts, node)
        if found is not None:
            dim, sizes = found
            wanted[dim] = [*wanted.get(dim, ()), *sizes]
        return candidates(facts, node, wanted.items())

    def last_candidates(self, node: Node) -> list[Assertions]:
        """Assertions that may help although no reason names them: sizes are not 0."""
        return [Assertions(minima={name: 1}) for name in maybe_empty(self._engine.facts, node)]

    def furthest(
        self, nodes: Iterable[Node], most: int
    ) -> list[tuple[Node, list[ExplainedReason]]]:
        """The nodes at which most checks passed, one for each reason, at most `most`."""
        firsts: dict[tuple[str, str], tuple[Node, Reason]] = {}
        for node in nodes:
            for reason in self._asked(node):
                key = reason.rule, reason.template
                if key not in firsts or reason.passed > firsts[key][1].passed:
                    firsts[key] = node, reason
        found = sorted(firsts.values(), key=lambda first: -first[1].passed)[:most]
        return [(node, [self._with_advice(node, reason)]) for node, reason in found]

    def _carries_sequence(self, node: Node) -> bool:
        """Whether a node is a counted loop that carries a sequence."""
        facts = self._engine.facts
        if node.op != "Loop" or node.domain or counted_loop(facts, node) is None:
            return False
        return any(facts.of(c.input).kind == "sequence" for c in LoopView(node).carried)

    def _asked(self, node: Node) -> list[Reason]:
        return [r for r in reasons_at(self._engine, node) if self._rule in ("", r.rule)]

    def _around(self, node: Node) -> Iterator[ExplainedReason]:
        """The reasons of rules at the control flow around a node that are about this node."""
        index = self._engine.index
        for graph in index.ancestors(index.graph_of(node)):
            owner = index.owner(graph)
            for reason in () if owner is None else self._asked(owner):
                about = {reason.place, *(v for v in reason.values if isinstance(v, (Node, Tensor)))}
                if owner is not None and not about.isdisjoint({node, *node.outputs}):
                    yield replace(self._with_advice(node, reason), root=describe(owner))

    def _with_advice(self, node: Node, reason: Reason) -> ExplainedReason:
        """The reason with options that assert the values of the failed check."""
        explained = self._explained(reason)
        remedies = dim_remedies(reason.values) + mask_remedies(self._engine, reason, self._values)
        limits: list[float] = []
        if isinstance(reason.place, Tensor):
            derivation = self._derivation(reason.place)
            remedies = derivation.remedies + remedies
            limits = derivation.limits
            explained.unassertable = derivation.unassertable
        explained.remedies = list(dict.fromkeys(map(str, remedies)))
        if explained.removes:
            wanted = self._remedies.setdefault(node, {})
            for remedy in remedies:
                wanted.setdefault(remedy, []).extend(limits)
            wanted |= {equal: [] for equal in equal_dims(reason)}
        return explained

    def _explained(self, reason: Reason) -> ExplainedReason:
        effect = effect_of(reason.kind)
        explained = ExplainedReason(
            reason.rule,
            reason.phase,
            reason.passed,
            reason.sentence,
            reason.template,
            reason.at,
            self.facts_text(reason.place),
            removes=effect.removes,
            converts=effect.converts,
            reduces=effect.reduces,
            checks=effect.checks,
        )
        deciding = _deciding_value(reason.place)
        if deciding is not None:
            explained.derivation = self._derivation(deciding).lines()
        return explained

    def _derivation(self, tensor: Tensor) -> Derivation:
        if tensor not in self._derivations:
            self._derivations[tensor] = Derivation(self._engine.facts, tensor)
        return self._derivations[tensor]

    def facts_text(self, at: Node | Tensor) -> str:
        """The facts of a value, or of what decides a node."""
        facts = self._engine.facts
        if not isinstance(at, Node):
            return value_text(facts.of(at))
        described = self._reader.described.get(at)
        if described is None:
            return ", ".join(value_text(facts.of(t)) for t in at.outputs if t.name)
        parts = [f"condition {described.condition}"] if described.condition else []
        if at.op != "If":
            count = described.trip_count or "unknown"
            parts.append(count if count == NO_TRIP_LIMIT else f"trip count {count}")
            parts += [f"carried value `{c.name}`: {c.type}" for c in described.carried[:3]]
        return "; ".join(parts)


def _deciding_value(place: Node | Tensor) -> Tensor | None:
    """The value that decides what a node does: a condition, a trip count, or a scanned sequence."""
    if not isinstance(place, Node):
        return place
    if place.op == "Loop":
        loop = LoopView(place)
        return loop.condition_out if loop.trip is None else loop.trip
    if place.op == "Scan" and place.inputs:
        return place.inputs[-1]
    return place.inputs[0] if place.op == "If" else None
