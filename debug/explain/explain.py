"""Explains why control flow remains: for each If, Loop and Scan the rules that could remove it,
and the first check of each that fails.
"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...request import Request, Settings
from ...rewrite.engine.engine import Engine
from ...rewrite.engine.miss import body_path, describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Rule
from ...rewrite.engine.trace import Commit
from ...rewrite.errors import AssumptionError
from ...rewrite.graph.ir import Node
from ...rewrite.storage.summary import CONTROL_FLOW
from ..command_options import settings_options
from .reasons import ExplainedReason, Reasons
from .recipes import cost, framework_of, recipe, words_for_if
from .rivals import Rivals, tried_elsewhere
from .trials import RemovalObserver, Trial, Trials

_MOST_NODES = 5
"""The nodes listed for a rule whose roots are not control flow."""
_MOST_SUGGESTIONS = 5
"""The similar names listed for a node that does not exist."""
_MOST_COMMON = 10
"""The reasons in a summary."""


@dataclass
class RemainingNode:
    """An If, Loop or Scan, or the node asked about, that remains after rewriting."""

    node: str
    op: str
    name: str
    outputs: list[str]
    place: str
    """The body that contains it; empty for the main graph."""
    number: int | None
    """The number of the node in the file, bodies before their owners; None if a rule added it."""
    facts: str = ""
    """The condition of an If; the trip count and carried values of a loop."""
    why: list[ExplainedReason] = field(default_factory=list)
    """Why each rule declines; first the one that would remove the whole node."""
    trials: list[Trial] = field(default_factory=list)
    """The assertions that change something at the node, confirmed by a rewrite under each."""
    recipe: str = ""
    """What to change in the source of the model."""
    cost: str = ""
    """What the node costs if it stays."""


@dataclass
class Explanation:
    """The control flow of a model that remains, and that was removed."""

    before: int
    """The number of Ifs, Loops and Scans in the file."""
    remaining: list[RemainingNode]
    removed: dict[int, str] = field(default_factory=dict)
    """For those that were removed, by number: `RULE at commit N`."""
    assumed: list[str] = field(default_factory=list)
    """The assertions of the request, as options of the command line."""
    labels: dict[int, str] = field(default_factory=dict)
    """Descriptions of the nodes in the file, by number."""
    defects: list[str] = field(default_factory=list)
    """Rules that raised an error, or whose patch failed its check."""
    asked: str = ""
    """The node asked about; empty for all control flow."""
    asked_numbers: list[int] = field(default_factory=list)
    """The numbers of the nodes in the file that have this name."""
    rule: str = ""
    """The rule asked about, if its roots are not control flow. `remaining` are then the nodes at
    which most of its checks passed, one for each reason."""
    rule_notes: list[str] = field(default_factory=list)
    """Why the rule asked about is not tried at the node asked about, and which rules come before
    it."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(request: Request, node: str = "", rule: str = "", *, tries: bool = True) -> Explanation:
    """Rewrites a model and explains why each If, Loop and Scan remains.

    `node` asks about one node by name, label or output, whatever its operator; `rule` about one
    rule. `tries` also rewrites the model under assertions that may help. Raises what `rewrite`
    raises, and AssumptionError for a node or rule that does not exist.
    """
    kind = _rule(request, rule)
    rivals = None if kind is None else Rivals(kind)
    observer = _NodeObserver(node, rivals)
    start = time.perf_counter()
    engine = request.engine(observer)
    engine.run()
    seconds = time.perf_counter() - start
    reasons = Reasons(engine, rule, observer.values)
    by_rule = not node and kind is not None and {*CONTROL_FLOW}.isdisjoint(kind.roots())
    if kind is not None and by_rule:
        found = reasons.furthest(_roots(engine, kind), _MOST_NODES)
    else:
        found = [(each, reasons.of(each)) for each in _remaining(engine, node)]
    trials = Trials(request, observer.outcome(engine), seconds) if tries else None
    explained = Explanation(
        before=sum(each.op in CONTROL_FLOW and not each.domain for each in observer.numbers),
        remaining=[
            RemainingNode(
                describe(each), each.op, each.name, _names(each), body_path(engine.index, each),
                observer.numbers.get(each), reasons.facts_text(each), why,
                [] if trials is None else trials.of(
                    each,
                    observer.label(each),
                    reasons.candidates(each),
                    reasons.last_candidates(each),
                ),
            )
            for each, why in found
        ],
        removed=observer.removed,
        assumed=settings_options(Settings(request.assertions)),
        labels=observer.labels,
        defects=list(map(str, engine.trace.defects())),
        asked=node,
        asked_numbers=observer.asked_numbers,
        rule=rule if by_rule else "",
        rule_notes=[] if kind is None or rivals is None else [
            *tried_elsewhere(kind, [each for each, why in found if not why]),
            *rivals.notes(observer.asked),
        ],
    )  # fmt: skip
    framework = framework_of(request.proto.producer_name)
    for left, (each, _) in zip(explained.remaining, found):
        if left.op in CONTROL_FLOW and left.why and not by_rule:
            first = left.why[0]
            decides = left.op == "If" and not first.unassertable
            words = words_for_if(engine.index, each) or first.reason
            left.recipe = recipe(words, first.remedies if decides else (), framework)
            left.cost = cost(left.op, request.options.engine)
    return explained


def _rule(request: Request, name: str) -> type[Rule] | None:
    """The rule of this name; None for an empty name."""
    kinds = {kind.name(): kind for phase in request.phases for kind in phase.rules}
    if name and name not in kinds:
        near = difflib.get_close_matches(name, kinds, 1)
        meant = f"Perhaps {near[0]} is meant. " if near else ""
        raise AssumptionError(
            f"There is no rule '{name}'", where="--rule", remedy=f"{meant}See: looplift rules list"
        )
    return kinds.get(name)


def _roots(engine: Engine, kind: type[Rule]) -> Iterator[Node]:
    """The nodes at which a rule is tried."""
    return (node for node in engine.index.walk() if kind.is_tried_at(node))


def _remaining(engine: Engine, asked: str) -> Iterator[Node]:
    """The remaining nodes to explain, outer ones first, in the order in which they run."""
    for graph in engine.index.graphs(engine.model.graph):
        for node in graph.nodes:
            wanted = (
                _is_named(node, asked) if asked else node.op in CONTROL_FLOW and not node.domain
            )
            if wanted and node in engine.index:
                yield node


def _names(node: Node) -> list[str]:
    return [tensor.name for tensor in node.outputs if tensor.name]


def _is_named(node: Node, text: str) -> bool:
    return text in (node.name, describe(node), *_names(node))


class _NodeObserver(RemovalObserver):
    """Numbers the control flow of the file and the node asked about, and records their removal."""

    def __init__(self, asked: str, rivals: Rivals | None) -> None:
        super().__init__()
        self._asked = asked
        self._rivals = rivals
        self._engine: Engine
        self.numbers: dict[Node, int] = {}
        self.asked: list[Node] = []
        """The nodes in the file that are asked about by name."""
        self.labels: dict[int, str] = {}
        self.removed: dict[int, str] = {}
        self.values: set[str] = set()
        """The names of the values of the main graph."""

    @property
    def asked_numbers(self) -> list[int]:
        return [self.numbers[node] for node in self.asked]

    def begins(self, engine: Engine) -> None:
        self._engine = engine
        root = engine.model.graph
        self.values = {t.name for t in root.inputs} | {
            name for node in root.nodes for name in _names(node)
        }
        nodes = list(engine.index.walk())
        control = [node for node in nodes if node.op in CONTROL_FLOW and not node.domain]
        self.asked = [node for node in nodes if self._asked and _is_named(node, self._asked)]
        if self._asked and not self.asked:
            self._raise_unknown(nodes, control)
        self.numbers = {
            node: number for number, node in enumerate(dict.fromkeys(control + self.asked))
        }
        self.labels = {number: describe(node) for node, number in self.numbers.items()}

    def label(self, node: Node) -> str | None:
        """How messages name a node in the file; None for a node that a rule added."""
        return self.labels[self.numbers[node]] if node in self.numbers else None

    def _raise_unknown(self, nodes: Sequence[Node], control: Sequence[Node]) -> None:
        known = {name for node in nodes for name in (node.name, *_names(node)) if name}
        similar = difflib.get_close_matches(self._asked, sorted(known), _MOST_SUGGESTIONS)
        names = similar or [describe(node) for node in control[:_MOST_SUGGESTIONS]]
        raise AssumptionError(
            f"There is no node '{self._asked}'",
            where="--node",
            remedy="Give the name of a node or of a value that it computes"
            + (f", such as {', '.join(names)}" if names else ""),
        )

    def matched(self, rule: Rule, node: Node, found: object) -> None:
        if self._rivals is not None:
            self._rivals.before(self._engine, rule, node)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        super().committed(commit, rule, node, patch)
        if self._rivals is not None:
            self._rivals.after(self._engine, commit, node)
        for removed in patch.removed:
            if removed in self.numbers:
                self.removed[self.numbers[removed]] = f"{commit.rule} at commit {commit.number}"


# --- many models ---


@dataclass
class CommonReason:
    """A reason, and how often it is the first one of a node."""

    rule: str
    template: str
    nodes: int
    models: int
    example: str


def most_common_reasons(
    explanations: Sequence[tuple[Path, Explanation]], most: int = _MOST_COMMON
) -> list[CommonReason]:
    """The first reasons of the remaining nodes of many models, the most common ones first."""
    nodes: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], set[Path]] = {}
    examples: dict[tuple[str, str], str] = {}
    for path, explanation in explanations:
        for remaining in explanation.remaining:
            if remaining.why:
                first = remaining.why[0]
                key = (first.rule, first.template)
                nodes[key] += 1
                models.setdefault(key, set()).add(path)
                examples.setdefault(key, f"{path.name}, {remaining.node}: {first.reason}")
    return [
        CommonReason(rule, template, count, len(models[rule, template]), examples[rule, template])
        for (rule, template), count in nodes.most_common(most)
    ]
