"""Tries assertions: rewrites a model under each of them to see what it changes.

Advice that was not tried may not work: another obstacle may remain, or the asserted size may still
be too large for the rule. `explain` recommends only what a trial confirms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from ...request import Request, Settings
from ...rewrite.engine.engine import Engine, Observer
from ...rewrite.engine.miss import describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Rule
from ...rewrite.engine.trace import Commit
from ...rewrite.errors import LoopliftError
from ...rewrite.facts.assertions import Assertions
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import CONTROL_FLOW, Node
from ...rewrite.storage.summary import control_flow_text
from ...rewrite.symbolic import file_name
from ...rules.loops.trivial_trip_counts import (
    EliminateZeroTripLoop,
    InlineSingleTripLoop,
    InlineSingleTripScan,
)
from ...rules.loops.unrolling import UnrollShortLoop
from ..command_options import settings_options
from .advice import EqualDims, Remedy

MOST_TRIALS = 24
"""The most assertions tried for one model."""
FEWEST_TRIALS = 4
"""The assertions tried even if they take longer than `_SECONDS`."""
_SECONDS = 20.0
"""The estimated time of all trials, unless FEWEST_TRIALS take longer."""
_LARGEST = 1 << 20
"""The largest number that is tried as a size or value."""

_FEW_TRIPS = (EliminateZeroTripLoop, InlineSingleTripLoop, InlineSingleTripScan, UnrollShortLoop)
"""Rules that remove a loop only because an assertion makes it short, which is not useful advice."""


@dataclass(frozen=True)
class Outcome:
    """The control flow that a rewrite leaves, and the rules that removed the rest."""

    left: dict[str, int]
    """The remaining control-flow operators, by name."""
    nodes: frozenset[str]
    """The remaining control-flow nodes, as messages name them."""
    gone: dict[str, type[Rule]]
    """The rule that removed each other node, or made it another operator."""
    became: dict[str, str]
    """The operator that it made of a node that it did not remove."""
    renamed: dict[str, str]
    """How messages name a node after a rule replaced its first output, by the name before."""

    def last_name(self, name: str | None) -> str | None:
        """The name of a node after all changes of its name."""
        seen: set[str] = set()
        while name in self.renamed and name not in seen:
            seen.add(name)
            name = self.renamed[name]
        return name

    @property
    def total(self) -> int:
        return sum(self.left.values())


@dataclass(frozen=True)
class Trial:
    """What an assertion changes at one node, found by rewriting the model under it."""

    option: str
    """The assertion as an option of the command line."""
    effect: str
    removes: bool
    """Whether the node is removed and less control flow remains."""
    becomes: str = ""
    """The operator that the node becomes, if it only becomes another one."""


class RemovalObserver(Observer):
    """Records which rule removes each control-flow node, or makes it another operator."""

    def __init__(self) -> None:
        self.gone: dict[str, type[Rule]] = {}
        self.became: dict[str, str] = {}
        self.renamed: dict[str, str] = {}

    def outcome(self, engine: Engine) -> Outcome:
        """The outcome of the finished rewrite."""
        nodes = [n for n in engine.index.walk() if n.op in CONTROL_FLOW and not n.domain]
        left = dict(Counter(node.op for node in nodes))
        return Outcome(left, frozenset(map(describe, nodes)), self.gone, self.became, self.renamed)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        for removed in patch.removed:
            if removed.op in CONTROL_FLOW and not removed.domain:
                self.gone[describe(removed)] = type(rule)
        if describe(node) == commit.node:
            return
        if node not in patch.removed and commit.node.startswith(f"{node.op} "):
            self.renamed[commit.node] = describe(node)  # its first output is another one
            return
        self.gone[commit.node] = type(rule)
        if node not in patch.removed:
            self.became[commit.node] = node.op


_Key = tuple[int, bool, str]
"""The control flow that a trial leaves, whether it gives a dim a size, and its effect."""


class Trials:
    """Tries assertions on one model, each once, while there is time."""

    def __init__(self, request: Request, before: Outcome, seconds: float) -> None:
        """`before` is the outcome without further assertions, and `seconds` what it took."""
        self._request = request
        self._before = before
        self._left = max(FEWEST_TRIALS, min(MOST_TRIALS, int(_SECONDS / max(seconds, 1e-3))))
        self._outcomes: dict[str, Outcome | None] = {}

    def of(
        self,
        node: Node,
        original: str | None,
        candidates: Sequence[Assertions],
        last: Sequence[Assertions],
    ) -> list[Trial]:
        """The trials that change something at a node, the one that leaves least first.

        `original` is how messages name the node in the file; None for a node that a rule added.
        Ends with the first trial that removes the node, and the opposite of its assertion. If none
        does, tries the `last` assertions, which no reason names, and adds one that removes it.
        """
        found: dict[_Key, Trial] = {}
        for asserted in candidates:
            trial = self._try(node, original, asserted, found)
            if trial is not None and trial.removes:
                opposite = _complement(asserted)
                if opposite is not None:
                    self._try(node, original, opposite, found)
                break
        else:
            found |= self._first_removal(node, original, last)
        return [trial for _, trial in sorted(found.items(), key=lambda item: item[0])]

    def _first_removal(
        self, node: Node, original: str | None, candidates: Sequence[Assertions]
    ) -> dict[_Key, Trial]:
        """The first trial that removes the node, by its key; {} if none does."""
        for asserted in candidates:
            found: dict[_Key, Trial] = {}
            trial = self._try(node, original, asserted, found)
            if trial is not None and trial.removes:
                return found
        return {}

    def _try(
        self,
        node: Node,
        original: str | None,
        asserted: Assertions,
        found: dict[_Key, Trial],
    ) -> Trial | None:
        """Tries an assertion; adds the trial to those found if it changes something."""
        option = " ".join(settings_options(Settings(asserted)))
        after = self._outcome(option, asserted)
        trial = None if after is None else self._compare(option, node, original, after)
        if after is not None and trial is not None:
            found.setdefault((after.total, bool(asserted.dims), trial.effect), trial)
        return trial

    def _outcome(self, option: str, asserted: Assertions) -> Outcome | None:
        """What remains under an assertion; None if it does not fit or there is no time."""
        if option not in self._outcomes and self._left > 0:
            self._left -= 1
            observer = RemovalObserver()
            try:
                engine = self._request.asserting(asserted).engine(observer)
                engine.run()
                self._outcomes[option] = observer.outcome(engine)
            except LoopliftError:
                self._outcomes[option] = None
        return self._outcomes.get(option)

    def _compare(
        self, option: str, node: Node, original: str | None, after: Outcome
    ) -> Trial | None:
        """What changed at a node; None if nothing did."""
        before = self._before
        remain = "remain" if after.total > 1 else "remains"
        original = after.last_name(original)
        label = next(
            (name for name in (describe(node), original) if name in after.gone), describe(node)
        )
        rule = after.gone.get(label)
        if {describe(node), original} & after.nodes or rule in _FEW_TRIPS:
            return None
        if original is None if rule is None else before.gone.get(label) is rule:
            return None  # a new node that another rewrite does not make, or nothing new
        if after.total < before.total:
            how = f"{rule.name()} removes it" if rule is not None else "it is not needed"
            more = "; `explain` with this option says why" if after.total else ""
            return Trial(option, f"{how}; {_counts(after.left)} {remain}{more}", True)
        if rule is None or after.left == before.left:
            return None
        if label in after.became:
            operator = after.became[label]
            return Trial(option, f"{rule.name()} makes it a {operator}", False, operator)
        effect = f"{rule.name()} removes it; {_counts(after.left)} {remain}"
        return Trial(option, f"{effect}: {rule.summary()}", False)


def _complement(asserted: Assertions) -> Assertions | None:
    """The largest size that a lower bound of a dim excludes; None for other assertions.

    A condition that `T>=2` decides is decided by `T=1`, too.
    """
    for name, low in asserted.minima.items():
        return Assertions(dims={name: low - 1}) if low > 1 else None
    return None


def _counts(operators: dict[str, int]) -> str:
    return control_flow_text(operators) or "no control flow"


# --- candidates ---


def candidates(
    facts: Facts, node: Node, wanted: Iterable[tuple[Remedy | EqualDims, Sequence[float]]]
) -> list[Assertions]:
    """The assertions to try at a node: weak ones first, and values near the limits compared with.

    `wanted` has what the user could assert, with the numbers that it is compared with.
    """
    lower: list[Assertions] = []
    masks: list[Assertions] = []
    values: list[Assertions] = []
    sizes: list[Assertions] = []
    for remedy, limits in wanted:
        near = _near(limits)
        if isinstance(remedy, EqualDims):
            lower += _with_one_name(facts, remedy)
        elif remedy.option == "--dim":
            lower += [Assertions(minima={remedy.name: n}) for n in (1, *near) if n > 0]
            sizes += [Assertions(dims={remedy.name: n}) for n in (*near, 1) if n > 0]
        elif remedy.option == "--prefix-mask":
            masks.append(Assertions(prefix_masks={remedy.name: remedy.axis}))
        elif remedy.option == "--input":
            values += _values(facts, remedy.name, near if node.op == "If" else (*near, 16))
        else:
            values += _shapes(facts, remedy.name)
    return [*lower, *masks, *values, *sizes]


def _near(limits: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers at and next to some limits, without those that are too large to try."""
    whole = [int(limit) for limit in limits if abs(limit) <= _LARGEST]
    return tuple(dict.fromkeys(limit + by for by in (0, 1, -1) for limit in whole))


def _values(facts: Facts, name: str, near: Sequence[int]) -> Iterator[Assertions]:
    """Values of an input: both truth values, or numbers."""
    tensor = next(t for t in facts.index.root.inputs if t.name == name)
    shape = facts.shape(tensor) or ()
    dtype = helper.tensor_dtype_to_np_dtype(facts.dtype(tensor))
    is_truth = facts.dtype(tensor) == onnx.TensorProto.BOOL
    for number in (True, False) if is_truth else (*near, 0, 1):
        value = np.full([n for n in shape if isinstance(n, int)], number).astype(dtype)
        yield Assertions(inputs={name: value if shape else value.item()})


def _with_one_name(facts: Facts, dims: EqualDims) -> Iterator[Assertions]:
    """Assertions that rename one of two dims to the other in the shapes of all inputs."""
    shapes = {
        t.name: tuple(d if isinstance(d, int) else file_name(d) for d in facts.shape(t) or ())
        for t in facts.index.root.inputs
    }
    for kept, replaced in ((dims.one, dims.other), (dims.other, dims.one)):
        renamed = {
            name: tuple(kept if size == replaced else size for size in shape)
            for name, shape in shapes.items()
            if replaced in shape
        }
        if renamed:
            yield Assertions(shapes=renamed)


def _shapes(facts: Facts, name: str) -> Iterator[Assertions]:
    """Shapes of an input whose sizes have no names: with names, and with 1."""
    tensor = next(t for t in facts.index.root.inputs if t.name == name)
    declared = facts.shape(tensor)
    if declared is None:
        return
    known = [n if isinstance(n, int) else None for n in declared]
    named = tuple(f"{name}_{axis}" if n is None else n for axis, n in enumerate(known))
    yield Assertions(shapes={name: named})
    yield Assertions(shapes={name: tuple(1 if n is None else n for n in known)})
