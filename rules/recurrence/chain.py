"""Copies of one cell in a row, as tracers leave them: found by the weight that every copy multiplies
the previous h with.

Step k is what lies between the h of step k-1 and its own, as far as no earlier step computes it.
Slices of sequences count as read. The first step may look otherwise, because its state is a constant
and was folded into it; it then is left out, or recognised by what it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_element
from ...rewrite.graph.ir import Graph, Node, Tensor
from .cells import Cell, NoCell
from .emission import parameters
from .first_step import first_link
from .link import MOST_NODES, Link, Walker, depends_on, link_between
from .weights import weight_key

_MOVES = frozenset({"Concat", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_DATA_SLOTS = {"MatMul": (0, 1), "Gemm": (0, 1), "LSTM": (5,), "GRU": (5,), "RNN": (5,)}
"""Where the previous h may come in; for the first two the weight is in the other place."""


def copies(facts: Facts, node: Node) -> list[Node]:
    """The nodes that apply the same weight, in order, if the given one stands for all of them."""
    slot = _weight_slot(facts, node)
    # All copies but one are turned away here: looking at all from each would be quadratic.
    first = None if slot is None else facts.index.first_use(node.inputs[slot])
    if slot is None or first is None or first.reader is not node:
        return []
    graph = facts.index.graph_of(node)
    found = [
        other
        for other, place in facts.index.uses(node.inputs[slot])
        if isinstance(other, Node) and place == slot and other.op == node.op
        and facts.index.graph_of(other) is graph
    ]  # fmt: skip
    return sorted(found, key=lambda n: n.order)


def _weight_slot(facts: Facts, node: Node) -> int | None:
    if node.domain:
        return None
    slots = (2,) if node.op in ("LSTM", "GRU", "RNN") else (1, 0)
    return next((s for s in slots if facts.is_constant(node.inputs[s])), None)


def find_chain(facts: Facts, nodes: Sequence[Node]) -> list[Link]:
    """The steps of a chain, all of one cell. Raises NoCell where the copies are no chain."""
    states = _states(facts, nodes)
    if not states:
        raise NoCell("its copies do not feed each other")
    walker = Walker(facts, nodes[0])
    walker.start_at(states[0])
    first = walker.visit(states[1])
    links = [link_between(walker, h, after) for h, after in pairwise(states[1:])]
    last = _last_link(walker, nodes[-1], states[-1])
    links += [last] if last is not None else []
    if len(links) < 2:
        raise NoCell("its copies are too few")
    for link, following in pairwise(links):
        _check_follows(link, following)
    start = first_link(walker, states[0], states[1], first, links[0])
    if start is None:  # its gates may be slices too, which no copy leads to
        walker = Walker(facts, nodes[0], _sequences(facts, links[0]))
        walker.start_at(states[0])
        start = first_link(walker, states[0], states[1], walker.visit(states[1]), links[0])
    return [*([start] if start is not None else []), *links]


def _sequences(facts: Facts, link: Link) -> set[Tensor]:
    """What the inputs of a step are slices of."""
    slices = [axis_element(facts, tensor) for tensor in link.inputs]
    return {found.source for found in slices if found is not None}


# --- the links ---


def _check_follows(link: Link, following: Link) -> None:
    """Raises NoCell unless the second step is of the same cell and starts where the first ends."""
    if _cell_key(link.cell) != _cell_key(following.cell):
        raise NoCell("its copies differ from step to step")
    if link.cell.c is not None:
        after = link.lifter.value(following.before[1])
        if after.form.key != link.cell.c.update.key:
            raise NoCell("its cell state does not pass from step to step")


def _cell_key(cell: Cell) -> object:
    found = parameters(cell)
    weights_of = (found.w, found.r, found.b, found.p)
    keys = tuple(None if w is None else weight_key(w) for w in weights_of)
    return cell.op, keys, tuple(cell.functions), tuple(sorted(cell.attributes.items()))


def _last_link(walker: Walker, copy: Node, previous: Tensor) -> Link | None:
    """The step after the last copy; it ends at no copy, so that its end has to be found."""
    for tensor in _ends(walker.facts, copy, previous):
        seen = set(walker.seen)
        try:
            return link_between(walker, previous, tensor)
        except NoCell:
            walker.seen = seen
    return None


def _ends(facts: Facts, copy: Node, previous: Tensor) -> Iterator[Tensor]:
    """Values behind the last copy that are computed by the operator that computed h before."""
    like = facts.index.producer(previous)
    if like is None:
        return
    slot = next(k for k, t in enumerate(like.outputs) if t is previous)
    waiting, seen = deque([copy]), {copy}
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        if node.op == like.op and slot < len(node.outputs):
            yield node.outputs[slot]
        for tensor in node.outputs:
            for reader in facts.index.consumers(tensor):
                if reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)


# --- the states between the copies ---


def _states(facts: Facts, nodes: Sequence[Node]) -> list[Tensor]:
    """h before each copy and after the last one; empty where the copies are independent."""
    for path, tensor in _leaves(facts, nodes[1]).items():
        if depends_on(facts, tensor, nodes[0]):
            there = [_operand(facts, node, path) for node in nodes]
            states = [t for t in there if t is not None]
            if len(states) == len(there) == len(set(states)):
                return states
    return []


def _operand(facts: Facts, node: Node, path: tuple[int, ...]) -> Tensor | None:
    """What a copy reads at the end of a way; the first copy may have more on its way, or less."""
    graph, tensor = facts.index.graph_of(node), node.inputs[path[0]]
    for slot in path[1:]:
        producer = facts.index.producer(tensor)
        if producer is None or not _moves(facts, producer, graph) or slot >= len(producer.inputs):
            return None
        tensor = producer.inputs[slot]
    return tensor


def _moves(facts: Facts, node: Node, graph: Graph) -> bool:
    """Whether a node of a graph only moves elements."""
    return not node.domain and node.op in _MOVES and facts.index.graph_of(node) is graph


def _leaves(facts: Facts, node: Node) -> dict[tuple[int, ...], Tensor]:
    """What a copy reads, seen through operators that only move elements, by the way there."""
    index, graph = facts.index, facts.index.graph_of(node)
    found: dict[tuple[int, ...], Tensor] = {}
    weight = _weight_slot(facts, node)
    waiting: list[tuple[tuple[int, ...], Tensor]] = [((s,), node.inputs[s]) for s in _DATA_SLOTS[node.op]
               if s < len(node.inputs) and s != weight]  # fmt: skip
    while waiting:
        path, tensor = waiting.pop()
        producer = index.producer(tensor)
        if producer is not None and _moves(facts, producer, graph) and len(path) < 8:
            operands = producer.inputs if producer.op == "Concat" else producer.inputs[:1]
            waiting += [((*path, k), t) for k, t in enumerate(operands)]
        elif tensor.name:
            found[path] = tensor
    return found
