"""Loop-carried dependencies that carry nothing.

y, w' = Loop(m, , x, w) { return s + u, u }      ->   y = Loop(m, , x) { return s + w }   w' = w
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.fingerprint import constant_key, fingerprint
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies
from ...rewrite.graph.views import CarriedValue, LoopView, ScanView


class EliminateDeadCarriedValues(Rule):
    """States that only feed themselves and each other go."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y, d = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, s) uo = Mul(u, u) }> }"""
    spares = {
        "every state": """g (float[3] x, int64 m) => (float[3] y) {
      y, d = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, u) uo = Mul(u, u) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        states = m.carried()
        needed = _needed_states(m.index, m.node, states)
        dead = [k for k in range(len(states)) if k not in needed]
        m.need(bool(dead), "every state is needed for a result")
        m.need(not m.index.is_unused(m.node), "nothing of the loop is needed")
        return {"node": m.node, "dead": dead, "states": states}

    def apply(self, patch: Patch, node: Node, dead: list[int], states: list[CarriedValue]) -> None:
        for k in dead:
            # What only computes the dead state still reads it: the initial value stands in until
            # those nodes, unread now, are removed.
            patch.replace(states[k].input, states[k].initial)
        patch.loop(node).drop_carried(dead)


def _needed_states(index: Index, node: Node, states: list[CarriedValue]) -> set[int]:
    """States read after the loop, or by what computes results or other needed states."""
    body: Graph = node.attrs["body"]
    inputs = {s.input: k for k, s in enumerate(states)}
    first = 1 if node.op == "Loop" else 0
    scanned = len(states)
    live_rows = [
        t
        for slot, t in enumerate(body.outputs[first + scanned :])
        if scanned + slot < len(node.outputs) and index.use_count(node.outputs[scanned + slot])
    ]
    roots = [*body.outputs[:first], *live_rows]
    needed: set[int] = set()
    for k, state in enumerate(states):
        if state.final is not None and index.use_count(state.final):
            needed.add(k)
            roots.append(state.output)
    seen: set[Tensor] = set()
    while roots:
        tensor = roots.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor in inputs:
            k = inputs[tensor]
            if k not in needed:
                needed.add(k)
                roots.append(states[k].output)
            continue
        producer = index.producer(tensor)
        if producer is not None and index.encloses(body, index.graph_of(producer)):
            roots += [t for t in producer.inputs if t.name]
            for inner in bodies(producer):
                roots += _read_in(index, inner)
    return needed


def _read_in(index: Index, body: Graph) -> list[Tensor]:
    """Everything a body and the bodies in it read."""
    read: list[Tensor] = []
    for graph in index.graphs(body):
        read += graph.outputs
        read += [t for node in index.nodes(graph) for t in node.inputs if t.name]
    return read


class ForwardInvariantCarriedValues(Rule):
    """A state that is handed on unchanged is its initial value."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, float[3] w, int64 m) => (float[3] y) {
      y, l = Loop (m, , x, w) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, u) uo = Identity(u) }> }"""
    spares = {
        "every state changes": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Neg(s) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        states = m.carried()
        fixed = [k for k, s in enumerate(states) if _is_handed_on(m, s)]
        m.need(bool(fixed), "every state changes from iteration to iteration")
        return {"node": m.node, "fixed": fixed, "states": states}

    def apply(self, patch: Patch, node: Node, fixed: list[int], states: list[CarriedValue]) -> None:
        for k in fixed:
            state = states[k]
            patch.replace(state.input, state.initial)
            if state.final is not None:
                patch.replace(state.final, state.initial)
        patch.loop(node).drop_carried(fixed)


def _is_handed_on(m: Match, state: CarriedValue) -> bool:
    source = m.index.original(state.output)
    return source is state.input or source is state.initial


class MergeEqualCarriedValues(Rule):
    """Two states that start equal and change equally are one."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y, float[3] z) {
      y, z = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Sin(s) uo = Sin(u) }> }"""
    spares = {
        "no two states": """g (float[3] x, int64 m) => (float[3] y, float[3] z) {
      y, z = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Sin(s) uo = Cos(u) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        states = m.carried()
        merged: list[tuple[CarriedValue, CarriedValue]] = []
        first: dict[int, CarriedValue] = {}
        for state, number in zip(states, _classes(m, states)):
            kept = first.setdefault(number, state)
            if kept is not state:
                merged.append((kept, state))
        m.need(bool(merged), "no two states start and change in the same way")
        gone = {state.input for _, state in merged}
        numbers = [k for k, state in enumerate(states) if state.input in gone]
        return {"node": m.node, "merged": merged, "numbers": numbers}

    def apply(
        self,
        patch: Patch,
        node: Node,
        merged: list[tuple[CarriedValue, CarriedValue]],
        numbers: list[int],
    ) -> None:
        for kept, gone in merged:
            patch.replace(gone.input, kept.input)
            if gone.final is not None and kept.final is not None:
                patch.replace(gone.final, kept.final)
        patch.loop(node).drop_carried(numbers)


_ROUNDS = 32
"""Rounds after which states that still differ in one more are taken to differ altogether."""


def _classes(m: Match, states: Sequence[CarriedValue]) -> list[int]:
    """A number for each state; those of states that surely are equal in every iteration are equal.

    Those that start equally are taken to be equal until an iteration makes a difference, as in
    optimistic value numbering (Alpern, Wegman, Zadeck: Detecting equality of variables in
    programs, 1988).
    """
    classes = _numbered([_start(m, state) for state in states])
    for _ in range(_ROUNDS):
        if len(set(classes)) == len(states):
            break
        named = {s.input: ("state", number) for s, number in zip(states, classes)}
        value = _values(m.index, m.node.attrs["body"], named)
        finer = _numbered([(n, value(s.output)) for s, n in zip(states, classes)])
        if finer == classes:
            return classes
        classes = finer
    return list(range(len(states)))


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    """The same number for the same key."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _start(m: Match, state: CarriedValue) -> Hashable:
    """What a state is before the first iteration."""
    fact = m.facts.of(state.initial)
    if state.final is None:  # there is nothing to read in place of another's
        return id(state)
    if fact.dtype and fact.shape is not None and is_zero(m.facts, state.initial):
        return ("zeros", fact.dtype, fact.shape)
    return id(state.initial)


def _values(
    index: Index, body: Graph, named: Mapping[Tensor, Hashable]
) -> Callable[[Tensor], Hashable]:
    """Names for values of a body: equal ones for values that surely are equal."""
    names: dict[Tensor, Hashable] = dict(named)
    numbers: dict[Hashable, int] = {}

    def name(tensor: Tensor) -> Hashable:
        if tensor in names or not tensor.name:
            return names.get(tensor)
        return constant_key(tensor) if isinstance(tensor, Constant) else id(tensor)

    for node in sorted(index.nodes(body), key=lambda n: n.order):
        if is_pure(node, index) and not bodies(node):
            key = (*_without_operands(node, index), *map(name, node.inputs))
            number = numbers.setdefault(key, len(numbers))
            names.update((t, ("value", number, slot)) for slot, t in enumerate(node.outputs))
    return name


def _without_operands(node: Node, index: Index) -> tuple[Hashable, ...]:
    key = fingerprint(node, index)
    assert isinstance(key, tuple)
    return (*key[:2], *key[3:])


class EliminateDeadScanOutputs(Rule):
    """Scan outputs that nobody reads are not collected."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) so = Add(s, s) row = Exp(s) }> }"""
    spares = {
        "every scan output": """g (float[3] x, int64 m) => (float[3] y, float[K,3] r) {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) so = Add(s, s) row = Exp(s) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        count = len(m.carried())
        outputs = m.node.outputs
        unread = [k for k in range(count, len(outputs)) if not m.index.use_count(outputs[k])]
        m.need(bool(unread), "every scan output is read")
        m.need(len(unread) < len(outputs), "nothing of the loop is read")
        return {"node": m.node, "unread": unread}

    def apply(self, patch: Patch, node: Node, unread: list[int]) -> None:
        carried = len(LoopView(node).carried if node.op == "Loop" else ScanView(node).carried)
        patch.loop(node).drop_scan_outputs(slot - carried for slot in unread)
