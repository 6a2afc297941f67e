"""Carried values and scan outputs that a loop does not need.

y, w' = Loop(m, , x, w) { return s + u, u }      ->   y = Loop(m, , x) { return s + w }   w' = w
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.fingerprint import constant_key, fingerprint
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies
from ...rewrite.graph.views import CarriedValue


@dataclass(frozen=True)
class UnneededCarriedValues:
    """Carried values that a loop need not carry, by number."""

    numbers: list[int]


class EliminateDeadCarriedValues(Rule[UnneededCarriedValues]):
    """Drops carried values that only each other's updates read."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y, d = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, s) uo = Mul(u, u) }> }"""
    spares = {
        "every carried value is needed": """g (float[3] x, int64 m) => (float[3] y) {
      y, d = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, u) uo = Mul(u, u) }> }"""
    }

    def match(self, m: Match) -> UnneededCarriedValues:
        carried = m.carried()
        needed = _needed_values(m.index, m.node, carried)
        dead = [number for number in range(len(carried)) if number not in needed]
        m.need(bool(dead), "every carried value is needed for a result")
        m.need(not m.index.is_unused(m.node), "nothing reads a result of the loop")
        return UnneededCarriedValues(dead)

    def apply(self, patch: Patch, found: UnneededCarriedValues) -> None:
        carried = patch.loop(patch.root).carried
        for number in found.numbers:
            # The updates of a dead value still read it. They read the initial value until
            # EliminateDeadNode removes them.
            patch.replace(carried[number].input, carried[number].initial)
        patch.loop(patch.root).drop_carried(found.numbers)


def _needed_values(index: Index, node: Node, carried: list[CarriedValue]) -> set[int]:
    """The numbers of carried values whose final value or effect on a result is read.

    Traces the values of the body back from the results that are read after the loop.
    """
    body: Graph = node.attrs["body"]
    numbers = {c.input: number for number, c in enumerate(carried)}
    conditions = body.outputs[: 1 if node.op == "Loop" else 0]
    scan_outputs = zip(body.outputs[len(conditions) + len(carried) :], node.outputs[len(carried) :])
    needed = {n for n, c in enumerate(carried) if c.final is not None and index.use_count(c.final)}
    pending = [
        *conditions,
        *(inner for inner, stacked in scan_outputs if index.use_count(stacked)),
        *(carried[number].output for number in needed),
    ]
    seen: set[Tensor] = set()
    while pending:
        tensor = pending.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor in numbers:
            number = numbers[tensor]
            if number not in needed:
                needed.add(number)
                pending.append(carried[number].output)
            continue
        producer = index.producer(tensor)
        if producer is not None and index.encloses(body, index.graph_of(producer)):
            pending += [t for t in producer.inputs if t.name]
            for inner in bodies(producer):
                pending += _read_in(index, inner)
    return needed


def _read_in(index: Index, body: Graph) -> list[Tensor]:
    """Everything that a body and the bodies in it read."""
    read: list[Tensor] = []
    for graph in index.graphs(body):
        read += graph.outputs
        read += [t for node in index.nodes(graph) for t in node.inputs if t.name]
    return read


class ForwardInvariantCarriedValues(Rule[UnneededCarriedValues]):
    """Replaces carried values that no iteration changes by their initial values."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, float[3] w, int64 m) => (float[3] y) {
      y, l = Loop (m, , x, w) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Add(s, u) uo = Identity(u) }> }"""
    spares = {
        "every carried value changes": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Neg(s) }> }"""
    }

    def match(self, m: Match) -> UnneededCarriedValues:
        invariant = [number for number, c in enumerate(m.carried()) if _is_invariant(m, c)]
        m.need(bool(invariant), "every carried value changes from iteration to iteration")
        return UnneededCarriedValues(invariant)

    def apply(self, patch: Patch, found: UnneededCarriedValues) -> None:
        carried = patch.loop(patch.root).carried
        for number in found.numbers:
            value = carried[number]
            patch.replace(value.input, value.initial)
            if value.final is not None:
                patch.replace(value.final, value.initial)
        patch.loop(patch.root).drop_carried(found.numbers)


def _is_invariant(m: Match, carried: CarriedValue) -> bool:
    """Whether an iteration returns a carried value, or its initial value, unchanged."""
    source = m.index.original(carried.output)
    return source is carried.input or source is carried.initial


@dataclass(frozen=True)
class EqualCarriedValues:
    """Carried values that equal another one in every iteration."""

    pairs: list[tuple[int, int]]
    """The numbers of the one that stays and of the one that equals it."""


class MergeEqualCarriedValues(Rule[EqualCarriedValues]):
    """Merges carried values that start equal and change equally."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y, float[3] z) {
      y, z = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Sin(s) uo = Sin(u) }> }"""
    spares = {
        "no two carried values": """g (float[3] x, int64 m) => (float[3] y, float[3] z) {
      y, z = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) so = Sin(s) uo = Cos(u) }> }"""
    }

    def match(self, m: Match) -> EqualCarriedValues:
        first: dict[int, int] = {}
        pairs = []
        for number, congruence in enumerate(_congruence_classes(m, m.carried())):
            kept = first.setdefault(congruence, number)
            if kept != number:
                pairs.append((kept, number))
        m.need(bool(pairs), "no two carried values start and change in the same way")
        return EqualCarriedValues(pairs)

    def apply(self, patch: Patch, found: EqualCarriedValues) -> None:
        carried = patch.loop(patch.root).carried
        for number, repeated in found.pairs:
            kept, gone = carried[number], carried[repeated]
            patch.replace(gone.input, kept.input)
            if gone.final is not None and kept.final is not None:
                patch.replace(gone.final, kept.final)
        patch.loop(patch.root).drop_carried([repeated for _, repeated in found.pairs])


_MOST_ROUNDS = 32
"""The most refinements before the rule assumes that all carried values differ."""


def _congruence_classes(m: Match, carried: Sequence[CarriedValue]) -> list[int]:
    """A number for each carried value; equal numbers mean equal values in every iteration.

    Starts from the assumption that values with equal initial values are equal, and splits classes
    until the updates agree with it: optimistic value numbering (Alpern, Wegman, Zadeck: Detecting
    equality of variables in programs, 1988).
    """
    classes = _numbered([_initial_key(m, value) for value in carried])
    for _ in range(_MOST_ROUNDS):
        if len(set(classes)) == len(carried):
            break
        named = {c.input: ("carried", number) for c, number in zip(carried, classes)}
        key = _value_keys(m.index, m.node.attrs["body"], named)
        finer = _numbered([(number, key(c.output)) for c, number in zip(carried, classes)])
        if finer == classes:
            return classes
        classes = finer
    return list(range(len(carried)))


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    """The same number for the same key."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _initial_key(m: Match, carried: CarriedValue) -> Hashable:
    """A key that is equal for carried values that start equal and can be merged."""
    fact = m.facts.of(carried.initial)
    if carried.final is None:  # readers of another final value could not read this one
        return id(carried)
    if fact.dtype and fact.shape is not None and is_zero(m.facts, carried.initial):
        return ("zeros", fact.dtype, fact.shape)
    return id(carried.initial)


def _value_keys(
    index: Index, body: Graph, named: Mapping[Tensor, Hashable]
) -> Callable[[Tensor], Hashable]:
    """A function that maps equal values of a body to equal keys; `named` has keys of body inputs."""
    keys: dict[Tensor, Hashable] = dict(named)
    numbers: dict[Hashable, int] = {}

    def key(tensor: Tensor) -> Hashable:
        if tensor in keys or not tensor.name:
            return keys.get(tensor)
        return constant_key(tensor) if isinstance(tensor, Constant) else id(tensor)

    for node in index.nodes_in_order(body):
        if is_pure(node, index) and not bodies(node):
            computation = (*_without_operands(node, index), *map(key, node.inputs))
            number = numbers.setdefault(computation, len(numbers))
            keys.update((t, ("value", number, slot)) for slot, t in enumerate(node.outputs))
    return key


def _without_operands(node: Node, index: Index) -> tuple[Hashable, ...]:
    """The fingerprint of a node without that of its operands."""
    key = fingerprint(node, index)
    assert isinstance(key, tuple)
    return (*key[:2], *key[3:])


@dataclass(frozen=True)
class DeadScanOutputs:
    """Scan outputs that nothing reads, by number."""

    numbers: list[int]


class EliminateDeadScanOutputs(Rule[DeadScanOutputs]):
    """Drops scan outputs that nothing reads."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) so = Add(s, s) row = Exp(s) }> }"""
    spares = {
        "every scan output": """g (float[3] x, int64 m) => (float[3] y, float[K,3] r) {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) so = Add(s, s) row = Exp(s) }> }"""
    }

    def match(self, m: Match) -> DeadScanOutputs:
        scan_outputs = m.node.outputs[len(m.carried()) :]
        dead = [number for number, t in enumerate(scan_outputs) if not m.index.use_count(t)]
        m.need(bool(dead), "every scan output is read")
        m.need(len(dead) < len(m.node.outputs), "nothing reads a result of the loop")
        return DeadScanOutputs(dead)

    def apply(self, patch: Patch, found: DeadScanOutputs) -> None:
        patch.loop(patch.root).drop_scan_outputs(found.numbers)
