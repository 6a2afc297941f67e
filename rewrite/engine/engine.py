"""Runs rules phase by phase until none fires.

Guarantees: bodies are visited before their owner; a commit re-queues only what it touched and what
reads facts that changed; a patch that fails its check is undone and reported as a defect of its
rule, and rewriting goes on without that rule at that node. Every commit lowers MEASURE. Where rules
still undo each other's work for ever, which they can only by steps that MEASURE takes their word
for, the step budget ends it and names them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import LoopliftError
from ..facts.assertions import Assertions
from ..facts.inference import facts_of
from ..facts.prefix_masks import find_prefix_masks
from ..facts.propagation import is_vague, refresh, settle
from ..graph.body_outputs import BodyOutputs
from ..graph.index import SHARES, Index, NoRoom
from ..graph.ir import Node, bodies
from ..storage.model import Model, opsets
from .edits import PatchError
from .finish import finish
from .patch import Patch
from .rule import ANY, RAISED, Match, Miss, Options, Phase, Rule, describe, raised
from .trace import Commit, Defect, Trace
from .worklist import Queue

MEASURE = (
    "decomposed", "split", "control", "normal form", "carried", "inner", "nodes", "outputs",
    "negated", "constants",
)  # fmt: skip
"""The termination measure: a commit must lower the first component that it changes.

The components are operators decomposed for a backend that lacks them, loops split in two,
control-flow nodes, deviations from the normal form, carried values and results of loops, nodes
weighted by the depth of their body, nodes, outputs of Ifs, negated conditions, distinct constants.
`decomposed`, `split` and `normal form` are not counted in the graph: rules report them (see
`Patch.decompose_operator`, `split_loop` and `toward_normal_form`) and must do so only finitely
often."""
_MANY_SHARES = 1 << 16
"""For a patch that has no room otherwise: it makes thousands of nodes at one place."""
_LATEST = 16
"""Commits whose rules are named when rewriting does not end."""
_FAN_OUT = 64
"""Readers of one value that a commit re-queues; a constant may have thousands."""


@dataclass
class Engine:
    """One rewrite of one model. `run` changes the model's graph in place."""

    model: Model
    phases: Sequence[Phase]
    assertions: Assertions = field(default_factory=Assertions)
    """What the user asserts about the model, written into it by `apply_assertions`."""
    options: Options = field(default_factory=Options)
    step_limit: int | None = None
    trace: Trace = field(default_factory=Trace)

    def __post_init__(self) -> None:
        self.index = Index(self.model.graph)
        self.facts = facts_of(self.index, opsets(self.model.header), self.assertions)
        find_prefix_masks(self.facts)
        self.body_outputs = BodyOutputs(self.index)
        self.body_outputs.take_copies_out()
        self.unread = {
            c for g in self.index.graphs(self.model.graph) for c in g.initializers
            if not self.index.use_count(c) or c.overridable
        }  # fmt: skip
        """Initializers that no node of the file reads stay; those that rules freed go."""
        self._tables = [_by_operator(phase.rules) for phase in self.phases]
        self._roots = [
            {root for rule in phase.rules for root in rule.roots()} for phase in self.phases
        ]
        self._new_roots = _new_roots(self.phases)
        self._steps = 0
        self._budget = 1000 + 20 * sum(1 for _ in self.index.walk())
        self.banned: dict[tuple[type[Rule], Node], str] = {}
        """Rules that are not tried at a node again, with the defect that showed there, if any."""
        self.declined: dict[tuple[type[Rule], Node], Miss] = {}
        """Where rules matched and then found that the opset lacks what the result would need."""
        self._unsettled: dict[Node, None] = {}
        """Owners of bodies in which something changed since facts of their states were found."""
        observer = self.trace.observer
        self._attempt_observer = observer if observer and observer.sees_attempts else None

    def run(self) -> None:
        """Rewrites to the fixpoint. Raises LoopliftError when the step budget is exceeded."""
        if self.trace.observer is not None:
            self.trace.observer.begins(self)
        queues = [Queue(nodes) for nodes in self._first_visits()]
        while any(queues) and not self._limit_reached():
            for number in range(len(queues)):
                self._run_phase(number, queues)
                while self._unsettled:
                    self._settle(list(self._unsettled), number, queues)
                    self._run_phase(number, queues)
        self.finish()

    def match(self, rule: Rule, node: Node) -> object:
        """What one rule finds at one node. Raises Miss when it declines."""
        return rule.match(Match(node, self.facts, self.options))

    def fire(self, phase: Phase, rule: Rule, node: Node, found: object) -> Patch | None:
        """Applies what a match found, without a search: what a replay does for each commit.

        None when the patch was wrong and is undone.
        """
        patch = self._commit(phase, rule, node, found)
        if patch is not None:
            self._neighbourhood(patch)
            unsettled, self._unsettled = self._unsettled, {}
            for loop in unsettled:
                if loop in self.index and is_vague(self.facts, loop):
                    settle(self.facts, loop)
        return patch

    def _first_visits(self) -> list[list[Node]]:
        """What each phase has to look at first: nodes that a rule no earlier phase has may match.

        A rule that an earlier phase has is done with all nodes but those that commits touch.
        """
        nodes = list(self.index.walk())
        operators = {ANY, *(node.op for node in nodes)}
        return [
            [] if roots.isdisjoint(operators) else [n for n in nodes if _starts(roots, n)]
            for roots in self._new_roots
        ]

    # --- one phase ---

    def _run_phase(self, number: int, queues: list[Queue]) -> None:
        phase, table, queue = self.phases[number], self._tables[number], queues[number]
        others = table[ANY]
        while queue and not self._limit_reached():
            node = queue.pop()
            if node not in self.index:
                continue
            if node in self._unsettled and is_vague(self.facts, node):
                self._settle([node], number, queues)
            patch = self._visit(phase, others if node.domain else table.get(node.op, others), node)
            if patch is not None:
                self._revisit(self._neighbourhood(patch), number, queues)

    def _revisit(self, nodes: list[Node], after: int, queues: list[Queue]) -> None:
        """Queues nodes that a commit of phase `after` disturbed.

        As with the first visits, a later phase need not try again what the phases before it have
        tried by then.
        """
        for number, queue in enumerate(queues):
            roots = (self._new_roots if number > after else self._roots)[number]
            for node in nodes:
                if _starts(roots, node):
                    queue.add(node)

    def _settle(self, loops: Iterable[Node], number: int, queues: list[Queue]) -> None:
        """Looks again at the states of loops whose bodies changed, and queues what they tell.

        Facts are followed downstream, but what holds of a state at the start of an iteration rests
        on what holds at the end of the one before.
        """
        for loop in loops:
            del self._unsettled[loop]
            if loop in self.index:
                near: dict[Node, None] = {}
                self._add_with_bodies(near, settle(self.facts, loop))
                self._revisit(list(near), number, queues)

    def _limit_reached(self) -> bool:
        return self.step_limit is not None and self._steps >= self.step_limit

    def _visit(self, phase: Phase, rules: list[Rule], node: Node) -> Patch | None:
        """Tries the rules in turn; the patch of the first that fires, or None."""
        match = Match(node, self.facts, self.options)
        if self.banned:
            rules = [rule for rule in rules if (type(rule), node) not in self.banned]
        attempts = self.trace.attempts
        observer = self._attempt_observer
        if observer is not None:
            observer.visited(node)
        for rule in rules:
            name = rule.__class__.__name__
            attempts[name] = attempts.get(name, 0) + 1
            try:
                found = rule.match(match)
            except Miss as miss:
                if observer is not None:
                    observer.missed(rule, node, miss)
                continue
            except LoopliftError:  # of the model, such as a file of weights that is gone
                raise
            except RAISED as error:
                self._defect(phase, rule, node, raised("match", type(rule), error))
                continue
            patch = self._commit(phase, rule, node, found)
            if patch is not None:
                return patch
        return None

    def _defect(self, phase: Phase, rule: Rule, node: Node, reason: str) -> None:
        """Reports a rule once per node and never tries it there again."""
        if (type(rule), node) not in self.banned:
            self.ban(type(rule), node, reason)
            defect = Defect(phase.name, rule.name(), describe(node), reason)
            self.trace.record(defect)
            if self.trace.observer is not None:
                self.trace.observer.failed(defect, rule, node)

    def ban(self, rule: type[Rule], node: Node, defect: str = "") -> None:
        """Never lets a rule fire at a node."""
        self.banned[rule, node] = defect

    def _commit(self, phase: Phase, rule: Rule, node: Node, found: object) -> Patch | None:
        """Applies a match and records it; None when the patch was wrong and is undone."""
        if (type(rule), node) in self.banned:
            return None
        if found is None:
            self._defect(phase, rule, node, "match returned None instead of what apply takes")
            return None
        started = time.perf_counter()
        label, place = describe(node), place_of(self.index, node)
        if self.trace.observer is not None:
            self.trace.observer.matched(rule, node, found)
        try:
            patch = self._apply(rule, node, found)
        except Miss as miss:
            self.declined[type(rule), node] = miss
            if self._attempt_observer is not None:
                self._attempt_observer.missed(rule, node, miss)
            return None
        if isinstance(patch, str):
            self._defect(phase, rule, node, patch)
            return None
        self._steps += 1
        self._budget += 20 * max(0, patch.delta["nodes"] + patch.made)
        if self._steps > self._budget:
            latest = {c.rule: None for c in self.trace.commits()[-_LATEST:]} | {rule.name(): None}
            raise LoopliftError(
                f"Rewriting does not end: after {self._steps} steps {' and '.join(latest)} go on",
                where=label,
                remedy="These rules undo each other's work: leave one out, or limit the steps",
            )
        self.facts.transfer(patch.replaced)
        seconds = time.perf_counter() - started
        edits, notes = tuple(patch.edits), tuple(patch.notes)
        commit = Commit(self._steps, phase.name, rule.name(), label, place, edits, notes, seconds)
        self.trace.record(commit)
        if self.trace.observer is not None:
            self.trace.observer.committed(commit, rule, node, patch)
        return patch

    def _apply(self, rule: Rule, node: Node, found: object) -> Patch | str:
        """The checked patch, or the reason why it was undone.

        Raises Miss, all undone, where the model's opset lacks what the result would need.
        """
        for shares in (SHARES, _MANY_SHARES):
            self.index.shares = shares
            patch = Patch(self.facts, node)
            for output in node.outputs:  # what they were is what replaces them is compared with
                self.facts.of(output)
            self.facts.mark()
            try:
                if isinstance(found, dict):
                    rule.apply(patch, **found)
                else:
                    rule.apply(patch, found)
                patch.check()
                _check_progress(patch)
                patch.check_types()
                patch.keep()
                return patch
            except NoRoom:
                self._undo(patch)
                for graph in self.index.ancestors(self.index.graph_of(node)):
                    self.index.renumber(graph)
            except (Miss, LoopliftError):
                self._undo(patch)
                raise
            except PatchError as error:
                self._undo(patch)
                return str(error)
            except RAISED as error:
                self._undo(patch)
                return raised("apply", type(rule), error)
        return "no room for new nodes"

    def _undo(self, patch: Patch) -> None:
        """Takes a patch back, and what was found out about the graph while it was there."""
        patch.roll_back()
        self.facts.retract()

    def _neighbourhood(self, patch: Patch) -> list[Node]:
        """Nodes whose match may come out differently now: the touched ones, those around them,
        those whose operands have new facts, and the bodies' owners; and the root, where the rules
        behind the one that fired had no turn.
        """
        near: dict[Node, None] = dict(patch.disturbed)
        if patch.root in self.index:
            near[patch.root] = None
        for node in patch.touched:
            if node not in self.index:
                continue
            near[node] = None
            if _is_loop(node):
                self._unsettled[node] = None
            for tensor in node.inputs:
                self._add(near, self.index.producer(tensor))
            for tensor in node.outputs:
                for reader in self.index.consumers(tensor)[:_FAN_OUT]:
                    near[reader] = None
            for graph in self.index.ancestors(self.index.graph_of(node)):
                owner = self.index.owner(graph)
                if owner is not None and _is_loop(owner):
                    self._unsettled[owner] = None
            self._add(near, self.index.owner(self.index.graph_of(node)))
        for tensor in patch.freed:
            self._add(near, self.index.producer(tensor))
        self._add_with_bodies(near, refresh(self.facts, patch.changed()))
        return list(near)

    def _add_with_bodies(self, near: dict[Node, None], nodes: Iterable[Node]) -> None:
        """Adds nodes and those in their bodies: what comes into a body is not what it was."""
        for node in nodes:
            near[node] = None
            for body in bodies(node):
                for graph in self.index.graphs(body):
                    near.update(dict.fromkeys(self.index.nodes(graph)))

    @staticmethod
    def _add(near: dict[Node, None], node: Node | None) -> None:
        if node is not None:
            near[node] = None

    # --- the end ---

    def finish(self) -> None:
        """Leaves valid ONNX: sorted, without leftovers, bodies that return values of their own."""
        finish(self.index, self.facts, self.unread, self.body_outputs)


def _check_progress(patch: Patch) -> None:
    """Raises PatchError if the measure does not fall: rules could undo each other for ever."""
    change = tuple(patch.delta[key] for key in MEASURE)
    if change >= (0,) * len(MEASURE):
        counts = ", ".join(f"{key} {number:+d}" for key, number in zip(MEASURE, change) if number)
        raise PatchError(
            f"the rewrite makes nothing smaller ({counts or 'no count changes'}); if the rule can "
            "make it only finitely often, call patch.toward_normal_form() in apply"
        )


def _is_loop(node: Node) -> bool:
    return node.op in ("Loop", "Scan") and not node.domain


def _starts(roots: set[str], node: Node) -> bool:
    """Whether a rule with one of these roots may match at the node."""
    return ANY in roots or (node.op in roots and not node.domain)


def _new_roots(phases: Sequence[Phase]) -> list[set[str]]:
    """For each phase the roots of the rules that no earlier phase has."""
    seen: set[type[Rule]] = set()
    found = []
    for phase in phases:
        found.append({root for rule in phase.rules if rule not in seen for root in rule.roots()})
        seen.update(phase.rules)
    return found


def _made(kind: type[Rule]) -> Rule:
    """Raises LoopliftError for a user's rule that cannot be made."""
    try:
        return kind()
    except RAISED as error:
        raise LoopliftError(
            f"The rule {kind.name()} cannot be made: {raised('__init__', kind, error)}",
            remedy="Let its class take no arguments, or leave it out",
        ) from error


def _by_operator(rules: Sequence[type[Rule]]) -> dict[str, list[Rule]]:
    """The rules that start from each operator, in their order; ANY for all other operators."""
    made = [_made(rule) for rule in rules]
    operators = {root for rule in rules for root in rule.roots()} | {ANY}
    return {op: [r for r in made if ANY in r.roots() or op in r.roots()] for op in operators}


def place_of(index: Index, node: Node) -> str:
    """The bodies a node stands in, outermost first; empty for the main graph."""
    parts = []
    graph = index.graph_of(node)
    while (owner := index.owner(graph)) is not None:
        name = next((k for k, v in owner.attrs.items() if v is graph), "body")
        parts.append(f"{name} of {describe(owner)}")
        graph = index.graph_of(owner)
    return ", in ".join(parts)
