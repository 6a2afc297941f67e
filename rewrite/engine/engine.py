"""Runs rules phase by phase until none fires.

Bodies are visited before their owner. After a commit, the engine visits again only what the commit
touched and what reads values with new facts. A patch that fails its check is undone and reported as
a defect of its rule; rewriting continues without that rule at that node.

Every commit lowers a termination measure (`patch_check.MEASURE`). Rules can still undo each other's
work forever if they report progress that they do not make; then the commit budget ends the rewrite
and names them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import LoopliftError
from ..facts.assertions import Assertions
from ..facts.inference import facts_of
from ..facts.prefix_masks import find_prefix_masks
from ..facts.propagation import has_unknown_carried_shape, refresh, reinfer_carried
from ..graph.body_forms import BodyForms
from ..graph.index import GAP_PARTS, Index, OrderExhausted
from ..graph.ir import Node, bodies
from ..storage.model import Model, opsets
from .edits import PatchError
from .finish import finish
from .inference_engine import ANY_ENGINE, UnsupportedNodes
from .miss import Miss, body_path, describe
from .patch import Patch
from .patch_check import check_patch
from .rule import (
    ANY,
    RULE_ERRORS,
    Match,
    Options,
    Phase,
    Rule,
    describe_error,
    root_name,
)
from .trace import Commit, Defect, Trace
from .worklist import Worklist

_SMALL_GAP_PARTS = 1 << 16
"""The gap parts (see `Index.gap_parts`) for a patch that adds thousands of nodes at one place."""
_LATEST = 16
"""The number of latest commits whose rules the message about endless rewriting names."""
_MOST_GENERATIONS = 200
"""The longest chain of commits that rewrite each other's results and make nothing smaller."""
_FAN_OUT = 64
"""The most readers of one value that a commit re-queues; a constant may have thousands."""


class Observer:
    """Follows a rewrite. A subclass overrides the calls that it needs, and must not edit the graph.

    Without an observer, none of this costs time.
    """

    sees_attempts = False
    """Whether `visited` and `missed` are called, which happens several times for each node."""

    def begins(self, engine: Engine) -> None:
        """Called before the first rule is tried."""

    def visited(self, node: Node) -> None:
        """Called when a node is visited; the calls until the next one are about this node."""

    def missed(self, rule: Rule, node: Node, miss: Miss) -> None:
        """Called when a rule declines."""

    def matched(self, rule: Rule, node: Node, found: object) -> None:
        """Called before a rule changes the graph; `found` is what its `match` returned."""

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        """Called after a rule changed the graph, before the facts are refreshed."""

    def failed(self, defect: Defect, rule: Rule, node: Node) -> None:
        """Called when a rule raised an error, or its patch was wrong and is undone."""


@dataclass
class Engine:
    """One rewrite of one model. `run` changes the model's graph in place."""

    model: Model
    phases: Sequence[Phase]
    assertions: Assertions = field(default_factory=Assertions)
    """What the user asserts about the model, written into it by `apply_assertions`."""
    options: Options = field(default_factory=Options)
    step_limit: int | None = None
    """The most commits; None for no limit."""
    trace: Trace = field(default_factory=Trace)
    observer: Observer | None = None

    def __post_init__(self) -> None:
        self.index = Index(self.model.graph)
        self.guard = self.index.guard
        self.facts = facts_of(self.index, opsets(self.model.header), self.assertions)
        find_prefix_masks(self.facts)
        self.body_forms = BodyForms(self.index)
        self.body_forms.to_rule_form()
        self.unused_initializers = {
            c for g in self.index.graphs(self.model.graph) for c in g.initializers
            if not self.index.use_count(c) or c.overridable
        }.difference(self.body_forms.first_conditions.values())  # fmt: skip
        """The initializers that the file itself does not use. They stay; others that become unused
        are dropped."""
        self._rules = [_rules_by_operator(phase.rules) for phase in self.phases]
        self._roots = [
            {root for rule in phase.rules for root in rule.roots()} for phase in self.phases
        ]
        self._new_roots = _new_roots(self.phases)
        self._commits = 0
        nodes = sum(1 for _ in self.index.walk())
        self._budget = 1000 + 20 * nodes
        self._growth = 0
        """The nodes added by commits that make nothing smaller; see `_is_endless`."""
        self._most_growth = 1000 + 20 * nodes
        self._generations: dict[Node, int] = {}
        """How many such commits led to a node, one rewriting the result of the other."""
        self.banned: dict[tuple[type[Rule], Node], str] = {}
        """The rules that must not fire at a node, with the defect that it caused there, if any."""
        self.declined: dict[tuple[type[Rule], Node], Miss] = {}
        """The rules that matched at a node, but whose `apply` raised a Miss."""
        self._changed_loops: dict[Node, None] = {}
        """Loops whose bodies changed since the facts of their carried values were inferred."""
        target = self.options.engine
        self._unsupported = None if target is ANY_ENGINE else UnsupportedNodes(target, self.facts)
        sees_attempts = self.observer is not None and self.observer.sees_attempts
        self._attempt_observer = self.observer if sees_attempts else None

    # --- entry points ---

    def run(self) -> None:
        """Rewrites to the fixpoint. Raises LoopliftError when the commit budget is exceeded."""
        if self.observer is not None:
            self.observer.begins(self)
        worklists = [Worklist(nodes) for nodes in self._first_visits()]
        while any(worklists) and not self._limit_reached():
            for number in range(len(worklists)):
                self._run_phase(number, worklists)
                while self._changed_loops:
                    self._reinfer(list(self._changed_loops), number, worklists)
                    self._run_phase(number, worklists)
        self.finish()

    def match(self, rule: Rule, node: Node) -> object:
        """What one rule finds at one node. Raises Miss when it declines."""
        with self.guard.lock():
            return rule.match(Match(node, self.facts, self.options))

    def apply_match(self, phase: Phase, rule: Rule, node: Node, found: object) -> Patch | None:
        """Applies a match without a search, as in a replay; None if the patch was wrong."""
        patch = self._commit(phase, rule, node, found)
        if patch is not None:
            self._affected_nodes(patch)
            changed, self._changed_loops = self._changed_loops, {}
            for loop in changed:
                if loop in self.index and has_unknown_carried_shape(self.facts, loop):
                    reinfer_carried(self.facts, loop)
        return patch

    def ban(self, rule: type[Rule], node: Node, defect: str = "") -> None:
        """Prevents a rule from firing at a node."""
        self.banned[rule, node] = defect

    def finish(self) -> None:
        """Makes the graph valid ONNX; `run` calls it at its end."""
        finish(self.index, self.facts, self.unused_initializers, self.body_forms)

    # --- worklists ---

    def _first_visits(self) -> list[list[Node]]:
        """For each phase the nodes at which it has a rule that no earlier phase has.

        A rule of an earlier phase has been tried at all nodes; only commits make it worth another
        try.
        """
        nodes = list(self.index.walk())
        operators = {ANY, *(root_name(node) for node in nodes)}
        return [
            [] if roots.isdisjoint(operators) else [n for n in nodes if _may_match(roots, n)]
            for roots in self._new_roots
        ]

    def _revisit(self, nodes: list[Node], number: int, worklists: list[Worklist]) -> None:
        """Queues nodes that a commit of phase `number` affected.

        A later phase skips rules that the phases before it will have tried by then.
        """
        for each, worklist in enumerate(worklists):
            roots = (self._new_roots if each > number else self._roots)[each]
            for node in nodes:
                if _may_match(roots, node):
                    worklist.add(node)

    def _reinfer(self, loops: Iterable[Node], number: int, worklists: list[Worklist]) -> None:
        """Infers the carried values of changed loops again, and queues what that affects."""
        for loop in loops:
            del self._changed_loops[loop]
            if loop in self.index:
                affected: dict[Node, None] = {}
                self._add_with_bodies(affected, reinfer_carried(self.facts, loop))
                self._revisit(list(affected), number, worklists)

    def _limit_reached(self) -> bool:
        return self.step_limit is not None and self._commits >= self.step_limit

    # --- one phase ---

    def _run_phase(self, number: int, worklists: list[Worklist]) -> None:
        phase, rules, worklist = self.phases[number], self._rules[number], worklists[number]
        rules_for_all = rules[ANY]
        while worklist and not self._limit_reached():
            node = worklist.pop()
            if node not in self.index:
                continue
            if node in self._changed_loops and has_unknown_carried_shape(self.facts, node):
                self._reinfer([node], number, worklists)
            tried = rules.get(root_name(node), rules_for_all)
            patch = self._visit(phase, tried, node)
            if patch is not None:
                self._revisit(self._affected_nodes(patch), number, worklists)

    def _visit(self, phase: Phase, rules: list[Rule], node: Node) -> Patch | None:
        """Tries rules in turn; returns the patch of the first that fires, or None."""
        match = Match(node, self.facts, self.options)
        if self.banned:
            rules = [rule for rule in rules if (type(rule), node) not in self.banned]
        attempts = self.trace.attempts
        observer, guard = self._attempt_observer, self.guard
        if observer is not None:
            observer.visited(node)
        for rule in rules:
            name = rule.__class__.__name__
            attempts[name] = attempts.get(name, 0) + 1
            guard.locked = True
            try:
                found = rule.match(match)
            except Miss as miss:
                if observer is not None:
                    observer.missed(rule, node, miss)
                continue
            except LoopliftError:  # an error of the model, such as a missing file of weights
                raise
            except RULE_ERRORS as error:
                self._report(phase, rule, node, describe_error("match", type(rule), error))
                continue
            except KeyboardInterrupt as interrupt:
                raise interrupted("match", rule, node) from interrupt
            finally:
                guard.locked = False
            patch = self._commit(phase, rule, node, found)
            if patch is not None:
                return patch
            match = Match(node, self.facts, self.options)  # The facts were derived again.
        return None

    def _report(self, phase: Phase, rule: Rule, node: Node, reason: str) -> None:
        """Reports a defect of a rule, once per node, and bans the rule there."""
        if (type(rule), node) not in self.banned:
            self.ban(type(rule), node, reason)
            defect = Defect(phase.name, rule.name(), describe(node), reason)
            self.trace.record(defect)
            if self.observer is not None:
                self.observer.failed(defect, rule, node)

    # --- one commit ---

    def _commit(self, phase: Phase, rule: Rule, node: Node, found: object) -> Patch | None:
        """Applies a match and records it; None if the patch was wrong and is undone."""
        if (type(rule), node) in self.banned:
            return None
        if found is None:
            self._report(phase, rule, node, "match returned None instead of what apply takes")
            return None
        started = time.perf_counter()
        label, path = describe(node), body_path(self.index, node)
        if self.observer is not None:
            self.observer.matched(rule, node, found)
        try:
            patch = self._apply(rule, node, found)
        except Miss as miss:
            self.declined[type(rule), node] = miss
            if self._attempt_observer is not None:
                self._attempt_observer.missed(rule, node, miss)
            return None
        if isinstance(patch, str):
            self._report(phase, rule, node, patch)
            return None
        self._count_commit(rule, patch, label)
        self.facts.transfer_prefix_masks(patch.replaced)
        seconds = time.perf_counter() - started
        edits, notes = tuple(patch.log), tuple(patch.notes)
        commit = Commit(self._commits, phase.name, rule.name(), label, path, edits, notes, seconds)
        self.trace.record(commit)
        if self.observer is not None:
            self.observer.committed(commit, rule, node, patch)
        return patch

    def _count_commit(self, rule: Rule, patch: Patch, label: str) -> None:
        """Counts a commit against the budget; raises LoopliftError when it is exceeded."""
        self._commits += 1
        self._budget += 20 * max(0, patch.delta["nodes"] + len(patch.added_constants))
        if self._commits > self._budget or self._is_endless(patch):
            latest = {c.rule: None for c in self.trace.commits()[-_LATEST:]} | {rule.name(): None}
            raise LoopliftError(
                f"Rewriting does not end. After {self._commits} commits, these rules keep firing: "
                + ", ".join(latest),
                where=label,
                remedy="Leave out one of these rules, or end `rewrite` early with --steps",
            )

    def _is_endless(self, patch: Patch) -> bool:
        """Whether commits that only claim progress rewrite their own results, or grow the graph.

        Such a commit makes nothing smaller but calls `toward_normal_form`. Two rules that undo each
        other show in the generations of the nodes, a rule that multiplies nodes in the growth.
        """
        delta = patch.delta
        removes = any(delta[key] < 0 for key in ("decomposed", "split", "control"))
        if removes or delta["nodes"] < 0 or not delta["normal form"]:
            return False
        generation = self._generations.get(patch.root, 0) + 1
        self._generations.update(dict.fromkeys(patch.added, generation))
        grown = self._growth  # a single commit may add any number of nodes
        self._growth += delta["nodes"]
        return generation > _MOST_GENERATIONS or grown > self._most_growth

    def _apply(self, rule: Rule, node: Node, found: object) -> Patch | str:
        """The checked patch, or the reason why it is wrong and was undone.

        Raises Miss, with all edits undone, where `apply` declines, or where the opset or the
        inference engine lacks an operator.
        """
        for gap_parts in (GAP_PARTS, _SMALL_GAP_PARTS):
            self.index.gap_parts = gap_parts
            patch = Patch(self.facts, node)
            for output in node.outputs:  # the check compares what replaces them with these facts
                self.facts.of(output)
            self.facts.begin_patch()
            try:
                with self.guard.lock():
                    rule.apply(patch, found)
                check_patch(patch)
                if self._unsupported is not None:
                    self._unsupported.check(patch)
                patch.keep()
                return patch
            except OrderExhausted:
                self._undo(patch)
                for graph in self.index.ancestors(self.index.graph_of(node)):
                    self.index.renumber(graph)
            except (Miss, LoopliftError):
                self._undo(patch)
                raise
            except KeyboardInterrupt as interrupt:
                self._undo(patch)
                raise interrupted("apply", rule, node) from interrupt
            except PatchError as error:
                self._undo(patch)
                return str(error)
            except RULE_ERRORS as error:
                self._undo(patch)
                return describe_error("apply", type(rule), error)
        return "there are no positions left for new nodes"

    def _undo(self, patch: Patch) -> None:
        """Undoes a patch, and drops the facts that were derived while it was in place."""
        patch.roll_back()
        self.facts.discard_patch()

    # --- what a commit affects ---

    def _affected_nodes(self, patch: Patch) -> list[Node]:
        """The nodes at which rules may match differently after a commit; refreshes the facts.

        These are the touched nodes and their neighbours, nodes whose operands have new facts, the
        only remaining reader of a value, the owners of changed bodies and of the bodies around
        them, the Ifs in the branches of an If with a new condition, those that the patch names, and
        the root, at which the remaining rules were not tried.
        """
        affected: dict[Node, None] = dict(patch.shrunk_owners)
        affected.update(dict.fromkeys(n for n in patch.retried if n in self.index))
        replacements = {new for _, new in patch.replaced}
        if patch.root in self.index:
            affected[patch.root] = None
        for node in patch.touched:
            if node not in self.index:
                continue
            affected[node] = None
            if _is_loop(node):
                self._changed_loops[node] = None
            if node.op == "If" and not replacements.isdisjoint(node.inputs):
                # Its new condition may decide the Ifs in its branches.
                inside = (n for b in bodies(node) for g in self.index.graphs(b) for n in g.nodes)
                affected.update((n, None) for n in inside if n.op == "If")
            for tensor in node.inputs:
                self._add(affected, self.index.producer(tensor))
            for tensor in node.outputs:
                for reader in self.index.consumers(tensor)[:_FAN_OUT]:
                    affected[reader] = None
            for graph in self.index.ancestors(self.index.graph_of(node)):
                owner = self.index.owner(graph)
                self._add(affected, owner)
                if owner is not None and _is_loop(owner):
                    self._changed_loops[owner] = None
        for tensor in patch.freed:
            self._add(affected, self.index.producer(tensor))
            if self.index.use_count(tensor) == 1:  # Some rules need a value with one reader.
                affected.update(dict.fromkeys(self.index.consumers(tensor)))
        self._add_with_bodies(affected, refresh(self.facts, patch.changed()))
        return list(affected)

    def _add_with_bodies(self, affected: dict[Node, None], nodes: Iterable[Node]) -> None:
        """Adds nodes and everything in their bodies, whose inputs may have new facts."""
        for node in nodes:
            affected[node] = None
            for body in bodies(node):
                for graph in self.index.graphs(body):
                    affected.update(dict.fromkeys(self.index.nodes(graph)))

    @staticmethod
    def _add(affected: dict[Node, None], node: Node | None) -> None:
        if node is not None:
            affected[node] = None


def interrupted(method: str, rule: Rule, node: Node) -> KeyboardInterrupt:
    """An interruption that names the rule that it interrupted, which may run forever."""
    return KeyboardInterrupt(f"in `{method}` of {rule.name()} at {describe(node)}")


def _is_loop(node: Node) -> bool:
    return node.op in ("Loop", "Scan") and not node.domain


def _may_match(roots: set[str], node: Node) -> bool:
    """Whether a rule with one of these roots may match at the node."""
    return ANY in roots or root_name(node) in roots


def _new_roots(phases: Sequence[Phase]) -> list[set[str]]:
    """For each phase the roots of the rules that no earlier phase has."""
    seen: set[type[Rule]] = set()
    found = []
    for phase in phases:
        found.append({root for rule in phase.rules if rule not in seen for root in rule.roots()})
        seen.update(phase.rules)
    return found


def _rules_by_operator(rules: Sequence[type[Rule]]) -> dict[str, list[Rule]]:
    """The rules for each operator that is the root of one, in order; ANY for other operators."""
    instances = [(_instance(rule), rule.roots()) for rule in rules]
    for_all = [instance for instance, roots in instances if ANY in roots]
    operators = {root for _, roots in instances for root in roots if root != ANY}
    found = {
        op: [instance for instance, roots in instances if op in roots or ANY in roots]
        for op in operators
    }
    return {**found, ANY: for_all}


def _instance(kind: type[Rule]) -> Rule:
    """An instance of a rule. Raises LoopliftError if a user's class cannot be instantiated."""
    try:
        return kind()
    except RULE_ERRORS as error:
        raise LoopliftError(
            f"The rule {kind.name()} cannot be made: {describe_error('__init__', kind, error)}",
            remedy="Let its class take no arguments, or leave it out",
        ) from error
