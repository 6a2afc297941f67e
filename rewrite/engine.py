"""Runs rules phase by phase until none fires.

Guarantees: bodies are visited before their owner; a commit re-queues only what it touched and what
reads facts that changed; every commit lowers MEASURE, so that rewriting ends; a patch that fails
its check is undone and reported as a defect of its rule, and rewriting goes on without that rule
at that node.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .edits import PatchError
from .errors import LoopliftError
from .facts import Assumptions, Facts
from .index import Index, NoRoom, bodies
from .ir import Graph, Node, Tensor, Variable
from .model import Model, opsets
from .naming import Names, defined
from .patch import Patch
from .rule import ANY, Match, Miss, Options, Phase, Rule, describe
from .trace import Commit, Defect, Trace

MEASURE = ("control", "loose", "carried", "inner", "nodes", "outputs", "negated", "constants")
"""What each commit must lower, the first that changes deciding: control-flow nodes, deviations from
the normal form, states and results of loops, nodes weighted by the depth of their body, all nodes,
outputs of Ifs, negated conditions, distinct constants."""


_LATEST = 16
"""Commits whose rules are named when rewriting does not end."""
_FAN_OUT = 64
"""Readers of one value that a commit re-queues; a constant may have thousands."""


@dataclass(frozen=True)
class Reason:
    """Why one rule does not fire at one node."""

    rule: str
    sentence: str
    at: str


@dataclass
class Engine:
    """One rewrite of one model. `run` changes the model's graph in place."""

    model: Model
    phases: Sequence[Phase]
    assumptions: Assumptions = field(default_factory=Assumptions)
    options: Options = field(default_factory=Options)
    step_limit: int | None = None
    trace: Trace = field(default_factory=Trace)

    def __post_init__(self) -> None:
        self.index = Index(self.model.graph)
        self.facts = Facts(self.index, opsets(self.model.header), self.assumptions)
        self._unread = {
            c for g in self.index.graphs(self.model.graph) for c in g.initializers
            if not self.index.use_count(c) or c.overridable
        }  # fmt: skip
        """Initializers that no node of the file reads stay; those that rules freed go."""
        self._tables = [_by_operator(phase.rules) for phase in self.phases]
        self._steps = 0
        self._budget = 1000 + 20 * sum(1 for _ in self.index.walk())
        self._banned: set[tuple[type[Rule], Node]] = set()

    def run(self) -> None:
        """Rewrites to the fixpoint. Raises LoopliftError when the step budget is exceeded."""
        queues = [_Queue(nodes) for nodes in self._first_visits()]
        while any(queues) and not self._limit_reached():
            for phase, table, queue in zip(self.phases, self._tables, queues):
                self._run_phase(phase, table, queue, queues)
        self._finish()

    def _first_visits(self) -> list[list[Node]]:
        """What each phase has to look at first: nodes that a rule no earlier phase has may match.

        A rule that an earlier phase has is done with all nodes but those that commits touch.
        """
        nodes = list(self.index.walk())
        seen: set[type[Rule]] = set()
        visits = []
        for phase in self.phases:
            roots = {root for rule in phase.rules if rule not in seen for root in _roots(rule)}
            seen.update(phase.rules)
            visits.append(nodes if ANY in roots else [n for n in nodes if n.op in roots])
        return visits

    def explain(self, node: Node) -> list[Reason]:
        """Why each rule that starts from such a node does not fire there."""
        reasons = []
        for phase in self.phases:
            for rule in phase.rules:
                if _applies(rule, node):
                    try:
                        rule().match(Match(node, self.facts, self.options))
                    except Miss as miss:
                        at = describe(miss.at if miss.at is not None else node)
                        reasons.append(Reason(rule.name(), str(miss), at))
        return reasons

    # --- one phase ---

    def _run_phase(
        self,
        phase: Phase,
        table: dict[str, list[Rule]],
        queue: _Queue,
        all_queues: list[_Queue],
    ) -> None:
        while queue and not self._limit_reached():
            node = queue.pop()
            if node not in self.index:
                continue
            patch = self._visit(
                phase, table.get(node.op if not node.domain else "", table[ANY]), node
            )
            if patch is not None:
                for neighbour in self._neighbourhood(patch):
                    for each in all_queues:
                        each.add(neighbour)

    def _limit_reached(self) -> bool:
        return self.step_limit is not None and self._steps >= self.step_limit

    def _visit(self, phase: Phase, rules: list[Rule], node: Node) -> Patch | None:
        """Tries the rules in turn; the patch of the first that fires, or None."""
        match = Match(node, self.facts, self.options)
        attempts = self.trace.attempts
        for rule in rules:
            name = rule.__class__.__name__
            attempts[name] = attempts.get(name, 0) + 1
            try:
                found = rule.match(match)
            except Miss:
                continue
            except Exception as error:  # noqa: BLE001  a user's rule may raise anything: reported
                self._defect(phase, rule, node, f"match raised {type(error).__name__}: {error}")
                continue
            patch = self._commit(phase, rule, node, found)
            if patch is not None:
                return patch
        return None

    def _defect(self, phase: Phase, rule: Rule, node: Node, reason: str) -> None:
        """Reports a rule once per node and never tries it there again."""
        if (type(rule), node) not in self._banned:
            self._banned.add((type(rule), node))
            self.trace.record(Defect(phase.name, rule.name(), describe(node), reason))

    def _commit(
        self, phase: Phase, rule: Rule, node: Node, found: dict[str, object]
    ) -> Patch | None:
        """Applies a match and records it; None when the patch was wrong and is undone."""
        if self._banned and (type(rule), node) in self._banned:
            return None
        started = time.perf_counter()
        label, place = describe(node), place_of(self.index, node)
        patch = self._apply(rule, node, found)
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
        seconds = time.perf_counter() - started
        edits, notes = tuple(patch.edits), tuple(patch.notes)
        self.trace.record(
            Commit(self._steps, phase.name, rule.name(), label, place, edits, notes, seconds)
        )
        return patch

    def _apply(self, rule: Rule, node: Node, found: dict[str, object]) -> Patch | str:
        """The checked patch, or the reason why it was undone."""
        for _ in range(2):
            patch = Patch(self.index, node, self.facts.opset)
            try:
                rule.apply(patch, **found)
                patch.check()
                _check_progress(patch)
                return patch
            except NoRoom:
                patch.roll_back()
                for graph in self.index.ancestors(self.index.graph_of(node)):
                    self.index.renumber(graph)
            except PatchError as error:
                patch.roll_back()
                return str(error)
            except Exception as error:  # noqa: BLE001  as in `_visit`
                patch.roll_back()
                return f"apply raised {type(error).__name__}: {error}"
        return "no room for new nodes"

    def _neighbourhood(self, patch: Patch) -> list[Node]:
        """Nodes whose match may come out differently now: the touched ones, those around them,
        those whose operands have new facts, and the bodies' owners.
        """
        near: dict[Node, None] = dict(patch.disturbed)
        for node in patch.touched:
            if node not in self.index:
                continue
            near[node] = None
            for tensor in node.inputs:
                self._add(near, self.index.producer(tensor))
            for tensor in node.outputs:
                for reader in self.index.consumers(tensor)[:_FAN_OUT]:
                    near[reader] = None
            self._add(near, self.index.owner(self.index.graph_of(node)))
        for tensor in patch.freed:
            self._add(near, self.index.producer(tensor))
        for node in self.facts.refresh(patch.touched):
            near[node] = None
        return list(near)

    @staticmethod
    def _add(near: dict[Node, None], node: Node | None) -> None:
        if node is not None:
            near[node] = None

    # --- the end ---

    def _finish(self) -> None:
        """Leaves valid ONNX: sorted, without leftovers, bodies that return values of their own."""
        for graph in list(self.index.graphs(self.model.graph)):
            self.index.tidy(graph)
            graph.initializers[:] = [
                c for c in graph.initializers if self.index.use_count(c) or c in self._unread
            ]
        _separate_value_names(self.index)
        for graph in list(self.index.graphs(self.model.graph)):
            _separate_node_names(graph, self.index)
            if graph is not self.model.graph:
                self._own_outputs(graph)

    def _own_outputs(self, body: Graph) -> None:
        """Gives outputs of a body a node of their own where onnxruntime needs one."""
        owner = self.index.owner(body)
        seen: set[Tensor] = set()
        for slot, tensor in enumerate(body.outputs):
            if tensor not in seen and owner is not None and self._may_return(owner, body, slot):
                seen.add(tensor)
                continue
            copy = Variable(tensor.name)
            copy.info = body.output_info.get(tensor, tensor.info)
            node = Node("Identity", "", {}, [tensor], [copy], "")
            node.order = (body.nodes[-1].order if body.nodes else 0.0) + 1.0
            body.nodes.append(node)
            self.index.add_node(node, body)
            outputs = list(body.outputs)
            outputs[slot] = copy
            self.index.set_outputs(body, outputs)

    def _may_return(self, owner: Node, body: Graph, slot: int) -> bool:
        """Whether a body may return a value as it is.

        onnxruntime refuses values of outer graphs, leaves what no node of a Scan body writes as
        garbage, and counts the iteration number of a Loop up in place.
        """
        tensor = body.outputs[slot]
        if self.index.home(tensor) is not body:
            return False
        if self.index.producer(tensor) is not None:
            return True
        if owner.op == "Loop":
            carried = slot < len(owner.inputs) - 1
            return carried and tensor is not body.inputs[0]
        return bool(owner.op == "If")


def _check_progress(patch: Patch) -> None:
    """The measure must fall, or rules could undo each other's work for ever."""
    change = tuple(patch.delta[key] for key in MEASURE)
    if change >= (0,) * len(MEASURE):
        counts = ", ".join(f"{key} {number:+d}" for key, number in zip(MEASURE, change))
        raise PatchError(f"the rewrite makes nothing smaller: {counts}")


def _separate_value_names(index: Index) -> None:
    """Values that stand where they did not stand in the file take names no other value has.

    A file may use one name in several bodies; what leaves a body meets the others.
    """
    names = Names(index.root)
    counts = Counter(t.name for g in index.graphs(index.root) for t in defined(g))
    interface = {*index.root.inputs, *index.root.outputs}
    for newcomer in index.newcomers:
        if isinstance(newcomer, Node):
            values: Sequence[Tensor] = newcomer.outputs if newcomer in index else ()
        else:
            values = (newcomer,) if index.home(newcomer) is not None else ()
        for value in values:
            if value.name and counts[value.name] > 1 and value not in interface:
                counts[value.name] -= 1
                value.name = names.fresh(value.name)


def _separate_node_names(graph: Graph, index: Index) -> None:
    """onnxruntime wants the nodes of a graph to have different names; newcomers give way."""
    taken = {node.name for node in graph.nodes if node not in index.newcomers}
    numbers: dict[str, int] = {}
    for node in graph.nodes:
        if node in index.newcomers and node.name:
            name = node.name
            while node.name in taken:
                numbers[name] = numbers.get(name, 0) + 1
                node.name = f"{name}_{numbers[name]}"
            taken.add(node.name)


def _roots(rule: type[Rule]) -> tuple[str, ...]:
    return (rule.root,) if isinstance(rule.root, str) else rule.root


def _applies(rule: type[Rule], node: Node) -> bool:
    return ANY not in _roots(rule) and node.op in _roots(rule) and not node.domain


def _by_operator(rules: Sequence[type[Rule]]) -> dict[str, list[Rule]]:
    """The rules that start from each operator, in their order; ANY for all other operators."""
    made = [rule() for rule in rules]
    operators = {root for rule in rules for root in _roots(rule)} | {ANY}
    return {
        op: [r for r in made if ANY in _roots(type(r)) or op in _roots(type(r))] for op in operators
    }


class _Queue:
    """Nodes to visit, each once at a time, first in first out.

    Nodes with bodies wait until no other node does: what is said of them depends on their bodies.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._plain: deque[Node] = deque()
        self._owners: deque[Node] = deque()
        self._waiting: set[Node] = set()
        for node in nodes:
            self.add(node)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, node: Node) -> None:
        if node not in self._waiting:
            self._waiting.add(node)
            (self._owners if bodies(node) else self._plain).append(node)

    def pop(self) -> Node:
        node = (self._plain or self._owners).popleft()
        self._waiting.discard(node)
        return node


def place_of(index: Index, node: Node) -> str:
    """The bodies a node stands in, outermost first; empty for the main graph."""
    parts = []
    graph = index.graph_of(node)
    while (owner := index.owner(graph)) is not None:
        name = next((k for k, v in owner.attrs.items() if v is graph), "body")
        parts.append(f"{name} of {describe(owner)}")
        graph = index.graph_of(owner)
    return ", in ".join(parts)
