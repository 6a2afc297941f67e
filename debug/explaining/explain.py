"""Why control flow is left: for each If, Loop and Scan the rules that could remove it, and the
first of their checks that failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...commands.arguments import Assertions, parse_assertions
from ...rewrite.engine.engine import Engine, Observer
from ...rewrite.engine.miss import body_path, describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Rule
from ...rewrite.engine.trace import Commit
from ...rewrite.errors import AssumptionError
from ...rewrite.graph.ir import Node
from ..counts import CONTROL
from ..subject import Subject
from .why import Reasons, Why

FINDING = 1
_MOST_NODES = 5
"""Told of for a rule that starts from other nodes than control flow."""
_SUGGESTED = 5
"""Names that are told to somebody who asks for one that is not there."""


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
    rule: str = ""
    """A rule that was asked for and starts from other nodes than control flow: `left` are those
    where it got furthest, one for each reason.
    """

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
    kind = _rule(subject, rule)
    watch = _Watch(node)
    engine = assumed.engine(watch)
    engine.run()
    reasons = Reasons(engine, rule, watch.values)
    elsewhere = not node and kind is not None and {*CONTROL}.isdisjoint(kind.roots())
    if kind is not None and elsewhere:
        found = reasons.furthest(_starts(engine, kind), _MOST_NODES)
    else:
        found = [(each, reasons.of(each)) for each in _left(engine, node)]
    return Explanation(
        sum(each.op in CONTROL and not each.domain for each in watch.numbers),
        [
            Left(
                describe(each), each.op, each.name, _names(each), body_path(engine.index, each),
                watch.numbers.get(each), why,
            )
            for each, why in found
        ],
        watch.gone,
        list(assume),
        watch.labels,
        [f"{d.rule} at {d.node}: {d.reason}" for d in engine.trace.defects()],
        node,
        watch.meant,
        rule if elsewhere else "",
    )  # fmt: skip


def with_assumptions(given: Assertions, assume: Iterable[str]) -> Assertions:
    """Assertions with more of them: `dim T=16`, `input sr=16000`, `shape x=1,T`,
    `prefix mask m axis 1`.

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
                '"prefix mask m axis 1"',
            )
        kinds[kind].append(stripped.removeprefix(kind).strip())
    masks = kinds["prefix mask"]
    more = parse_assertions(kinds["input"], kinds["dim"], kinds["shape"], given.strict, masks)
    return Assertions(
        {**given.inputs, **more.inputs},
        (*given.dims, *more.dims),
        {**given.shapes, **more.shapes},
        given.strict,
        {**given.prefix_masks, **more.prefix_masks},
    )


def _rule(subject: Subject, name: str) -> type[Rule] | None:
    """The rule of this name; None if none is asked for."""
    kinds = {kind.name(): kind for phase in subject.phases for kind in phase.rules}
    if name and name not in kinds:
        raise AssumptionError(
            f"There is no rule '{name}'", where="--rule", remedy="See: looplift rules"
        )
    return kinds.get(name)


def _starts(engine: Engine, kind: type[Rule]) -> Iterator[Node]:
    """Nodes the rule may start from, other than control flow."""
    roots = kind.roots()
    for node in engine.index.walk():
        if ANY in roots or (node.op in roots and not node.domain):
            yield node


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
