"""Finds unrolled recurrences: copies of one cell in a row, as tracers leave them.

    h1 = cell(x[0], h0)    h2 = cell(x[1], h1)    h3 = cell(x[2], h2)

Every copy multiplies the previous h by the same weight, which is how the copies are found. Copy k
consists of the nodes between the h of copy k - 1 and its own that no earlier copy needs. Slices of
sequences count as inputs. The first copy may look different, because constant folding worked on its
constant initial state. It is then recognised by what it computes, or left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_element
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from ...rewrite.symbolic import Dim
from . import affine_forms, weights
from .affine_forms import (
    ActivatedForm,
    AffineForm,
    ColumnSelection,
    ElementwiseProduct,
    InputFeatures,
    SymbolicInput,
)
from .cell_matching import match_cell
from .cells import LINEAR, Cell, RecurrentState, split_clip
from .emission import input_matrix, operator_weights
from .lifting import RNN_FLOATS, CellLayout, LiftedValue, Lifter, constant_value, input_value
from .time_steps import FormTimeStep
from .weights import weight_key

_MOST_NODES = 400
"""The most nodes of one copy of a cell."""
_LONGEST_PATH = 8
"""The most operators between a weight and the h that it is applied to."""
_MOVEMENTS = frozenset({"Concat", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_STATE_SLOTS = {"MatMul": (0, 1), "Gemm": (0, 1), "LSTM": (5,), "GRU": (5,), "RNN": (5,)}
"""The operands that may be the previous h; of MatMul and Gemm, the one that is not the weight."""


@dataclass(frozen=True, eq=False)
class CellCopy:
    """One copy of the cell."""

    cell: Cell
    inputs: list[Tensor]
    """x, in the order of `cell.inputs`."""
    before: list[Tensor]
    """h and, for an LSTM, c before the time step."""
    after: list[Tensor]
    """The same states after it."""
    nodes: list[Node]
    """The nodes of the copy, in order."""
    lifter: Lifter

    def layout(self, tensor: Tensor) -> CellLayout:
        """The layout of a value of the copy. Raises Miss for several batch axes."""
        layout = self.lifter.value(tensor).layout()
        if layout is None:
            raise Miss("{} has several batch axes", tensor)
        return layout


# --- the weight that all copies apply ---


def nodes_with_weight(facts: Facts, node: Node) -> list[Node]:
    """The nodes that apply the weight of the given node, in order; empty unless it is the first."""
    slot = _weight_slot(facts, node)
    # Only the first use continues: searching from every use would take quadratic time.
    first = None if slot is None else facts.index.first_use(node.inputs[slot])
    if slot is None or first is None or first.reader is not node:
        return []
    graph = facts.index.graph_of(node)
    found = [
        use.reader
        for use in facts.index.uses(node.inputs[slot])
        if isinstance(use.reader, Node) and use.slot == slot and use.reader.op == node.op
        and facts.index.graph_of(use.reader) is graph
    ]  # fmt: skip
    return sorted(found, key=lambda n: n.order)


def _weight_slot(facts: Facts, node: Node) -> int | None:
    if node.domain:
        return None
    slots = (2,) if node.op in ("LSTM", "GRU", "RNN") else (1, 0)
    return next((s for s in slots if facts.is_constant(node.inputs[s])), None)


# --- the copies ---


def find_copies(facts: Facts, nodes: Sequence[Node]) -> list[CellCopy]:
    """The copies of one cell; each contains one of the nodes that apply its weight.

    Raises Miss where there are none, or where they do not form a chain.
    """
    states = _states(facts, nodes)
    if not states:
        raise Miss("the nodes that apply its weight do not feed each other")
    claims = _Claims(facts, nodes[0])
    claims.exclude(states[0])
    first_nodes = claims.claim(states[1])
    copies = [_copy_between(claims, h, after) for h, after in pairwise(states[1:])]
    last = _last_copy(claims, nodes[-1], states[-1])
    copies += [last] if last is not None else []
    if len(copies) < 2:
        raise Miss("only one copy of the cell is found")
    for copy, following in pairwise(copies):
        _check_follows(copy, following)
    first = _first_copy(claims, states[0], states[1], first_nodes, copies[0])
    if first is None:  # it may slice its gates as well: then only known sequences are inputs
        claims = _Claims(facts, nodes[0], _sequences(facts, copies[0]))
        claims.exclude(states[0])
        first = _first_copy(claims, states[0], states[1], claims.claim(states[1]), copies[0])
    return [*([first] if first is not None else []), *copies]


def _sequences(facts: Facts, copy: CellCopy) -> set[Tensor]:
    """The values that the inputs of a copy are slices of."""
    slices = [axis_element(facts, tensor) for tensor in copy.inputs]
    return {found.source for found in slices if found is not None}


class _Claims:
    """Assigns every node to the first copy that needs it."""

    def __init__(self, facts: Facts, first: Node, sequences: Collection[Tensor] = ()) -> None:
        """`first` is the first node that applies the weight.

        The inputs are slices of `sequences`. Without these, they are slices of any value that does
        not depend on `first`: a copy may slice its gates, too.
        """
        self.facts = facts
        self.claimed: set[Tensor] = set()
        self._graph: Graph = facts.index.graph_of(first)
        self._first = first
        self._is_sequence = dict.fromkeys(sequences, True)
        self._only_given = bool(sequences)

    def exclude(self, h: Tensor) -> None:
        """Excludes what the initial h is computed from, which belongs to no copy."""
        index, waiting = self.facts.index, deque([h])
        while waiting and len(self.claimed) < _MOST_NODES:
            tensor = waiting.popleft()
            if tensor not in self.claimed and tensor.name:
                self.claimed.add(tensor)
                node = index.producer(tensor)
                if node is not None and index.graph_of(node) is self._graph:
                    waiting += node.inputs

    def claim(self, wanted: Tensor) -> list[Node]:
        """The unclaimed nodes that compute a value, in order, which are claimed from now on."""
        index = self.facts.index
        nodes: dict[Node, None] = {}
        waiting = [wanted]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.claimed or not tensor.name:
                continue
            self.claimed.add(tensor)
            node = index.producer(tensor)
            if node is None or index.graph_of(node) is not self._graph or bodies(node):
                continue
            if self._is_input(tensor):
                continue
            nodes[node] = None
            waiting += node.inputs
        return sorted(nodes, key=lambda n: n.order)

    def _is_input(self, tensor: Tensor) -> bool:
        """Whether a value is a slice of a sequence, which no copy computes."""
        found = axis_element(self.facts, tensor)
        if found is None:
            return False
        if found.source not in self._is_sequence:
            may_be = not self._only_given and not depends_on(self.facts, found.source, self._first)
            self._is_sequence[found.source] = may_be
        return self._is_sequence[found.source]


def depends_on(facts: Facts, tensor: Tensor, node: Node) -> bool:
    """Whether a value may depend on a node; also True where that takes long to find out."""
    index = facts.index
    waiting, seen = [tensor], set[Tensor]()
    while waiting and len(seen) < _MOST_NODES:
        tensor = waiting.pop()
        producer = index.producer(tensor)
        if producer is node:
            return True
        if tensor not in seen and producer is not None and producer.order > node.order:
            seen.add(tensor)
            waiting += [t for t in producer.inputs if t.name]
    return bool(waiting)


def _copy_between(claims: _Claims, h: Tensor, after: Tensor) -> CellCopy:
    """The copy between two hidden states. Raises Miss if it is not a cell."""
    nodes = claims.claim(after)
    if len(nodes) > _MOST_NODES:
        raise Miss("a copy has more than {} nodes", _MOST_NODES)
    lifter = _lifter(claims.facts, h, nodes)
    before, update = lifter.value(h), lifter.value(after)
    source = before.form.monomials[0][0] if before.form.terms else None
    if not isinstance(source, SymbolicInput) or before.axes != update.axes:
        raise Miss("the state {} changes its shape", h)
    state = RecurrentState(source, np.arange(source.width), update.form)
    cell = match_cell(state, _possible_cell_states(update.form))
    if cell.functions == [LINEAR]:  # any sum before an activation looks like such a cell
        raise Miss("a copy has no activation")
    states = [cell.h, *([] if cell.c is None else [cell.c])]
    ends = [after, *(_value_of_form(lifter, nodes, s.update) for s in states[1:])]
    return CellCopy(
        cell,
        _tensors(s.origin for s in cell.inputs),
        _tensors(s.source.origin for s in states),
        ends,
        nodes,
        lifter,
    )


def _lifter(facts: Facts, h: Tensor, nodes: Sequence[Node]) -> Lifter:
    """Interprets the nodes of a copy; all other values are inputs, except constants other than h."""
    own = set(nodes)
    batch: tuple[Dim, ...] = ()

    def outer(tensor: Tensor) -> LiftedValue | Miss:
        shape = facts.shape(tensor)
        if shape is None or facts.dtype(tensor) not in RNN_FLOATS:
            return Miss("{} is not a float tensor of known rank", tensor)
        return input_value(facts, tensor, shape, ("outer", id(tensor)), tensor, batch)

    constant = facts.constant(h)
    value = outer(h) if constant is None else _constant_state(constant)
    inputs = {h: value} if isinstance(value, LiftedValue) else {}
    batch = value.batch_sizes if isinstance(value, LiftedValue) else ()
    return Lifter(facts, inputs, lambda node: node in own, outer)


def _constant_state(state: weights.Array) -> LiftedValue:
    """A constant initial state, with one row if all rows are equal."""
    first = state[:1]
    same = state.ndim > 1 and np.array_equal(np.broadcast_to(first, state.shape), state)
    return constant_value(first if same else state)


def _possible_cell_states(update: AffineForm) -> list[RecurrentState]:
    """The inputs that may be the cell state: those in the argument of an output activation."""
    found = []
    for monomial, _ in update.terms.values():
        for factor in monomial.factors if isinstance(monomial, ElementwiseProduct) else ():
            if isinstance(factor, ActivatedForm):
                argument, _ = split_clip(factor.argument)
                found += [
                    RecurrentState(f.source, f.columns, argument) for f in _input_factors(argument)
                ]
    return found


def _input_factors(form: AffineForm) -> list[InputFeatures]:
    """The inputs that are factors of a term, and after them those that are terms."""
    factors = [
        factor
        for monomial, _ in form.terms.values()
        if isinstance(monomial, ElementwiseProduct)
        for factor in monomial.factors
        if isinstance(factor, InputFeatures)
    ]
    alone = [
        InputFeatures(monomial, coefficient.columns)
        for monomial, coefficient in form.terms.values()
        if isinstance(monomial, SymbolicInput)
        and isinstance(coefficient, ColumnSelection)
        and coefficient.is_complete
    ]
    return factors + alone


def _value_of_form(lifter: Lifter, nodes: Sequence[Node], form: AffineForm) -> Tensor:
    """The value that the nodes compute and that has this form."""
    for node in nodes:
        for tensor in node.outputs:
            value = lifter.value_or_none(tensor)
            if value is not None and value.form.key == form.key:
                return tensor
    raise Miss("the cell state is never computed as a value of its own")


def _tensors(origins: Iterable[object]) -> list[Tensor]:
    return [t for t in origins if isinstance(t, (Variable, Constant))]


# --- the chain of copies ---


def _check_follows(copy: CellCopy, following: CellCopy) -> None:
    """Raises Miss unless two copies are of one cell, and the second starts where the first ends."""
    if _cell_key(copy.cell) != _cell_key(following.cell):
        raise Miss("its copies are different cells")
    if copy.cell.c is not None:
        after = copy.lifter.value(following.before[1])
        if after.form.key != copy.cell.c.update.key:
            raise Miss("its copies do not pass on their cell state")


def _cell_key(cell: Cell) -> object:
    if not cell.inputs:
        raise Miss("it reads nothing but its own state")
    found = operator_weights(cell)
    keys = tuple(None if w is None else weight_key(w) for w in (found.w, found.r, found.b, found.p))
    return cell.op, keys, tuple(cell.functions), tuple(sorted(cell.attributes.items()))


def _last_copy(claims: _Claims, node: Node, previous: Tensor) -> CellCopy | None:
    """The copy of the last node that applies the weight; no further node marks where it ends."""
    for tensor in _possible_ends(claims.facts, node, previous):
        claimed = set(claims.claimed)
        try:
            return _copy_between(claims, previous, tensor)
        except Miss:
            claims.claimed = claimed
    return None


def _possible_ends(facts: Facts, node: Node, previous: Tensor) -> Iterator[Tensor]:
    """The values after a node that are computed by the operator that computed the previous h."""
    like = facts.index.producer(previous)
    if like is None:
        return
    slot = next(k for k, t in enumerate(like.outputs) if t is previous)
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if node.op == like.op and slot < len(node.outputs):
            yield node.outputs[slot]
        for tensor in node.outputs:
            for reader in facts.index.consumers(tensor):
                if reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)


def _states(facts: Facts, nodes: Sequence[Node]) -> list[Tensor]:
    """The previous h of each node that applies the weight; empty where they are independent."""
    for path, tensor in _operands(facts, nodes[1]).items():
        if depends_on(facts, tensor, nodes[0]):
            found = [_operand_at(facts, node, path) for node in nodes]
            states = [t for t in found if t is not None]
            if len(states) == len(found) == len(set(states)):
                return states
    return []


def _operands(facts: Facts, node: Node) -> dict[tuple[int, ...], Tensor]:
    """The operands of a node before operators that move elements, by the path of slots to them."""
    index, graph = facts.index, facts.index.graph_of(node)
    found: dict[tuple[int, ...], Tensor] = {}
    weight = _weight_slot(facts, node)
    waiting: list[tuple[tuple[int, ...], Tensor]] = [
        ((slot,), node.inputs[slot])
        for slot in _STATE_SLOTS[node.op]
        if slot < len(node.inputs) and slot != weight
    ]
    while waiting:
        path, tensor = waiting.pop()
        producer = index.producer(tensor)
        moves = producer is not None and _is_movement(facts, producer, graph)
        if producer is not None and moves and len(path) < _LONGEST_PATH:
            operands = producer.inputs if producer.op == "Concat" else producer.inputs[:1]
            waiting += [((*path, k), t) for k, t in enumerate(operands)]
        elif tensor.name:
            found[path] = tensor
    return found


def _operand_at(facts: Facts, node: Node, path: tuple[int, ...]) -> Tensor | None:
    """The operand at the end of a path; None where the first node has another path."""
    graph, tensor = facts.index.graph_of(node), node.inputs[path[0]]
    for slot in path[1:]:
        producer = facts.index.producer(tensor)
        if producer is None or not _is_movement(facts, producer, graph):
            return None
        if slot >= len(producer.inputs):
            return None
        tensor = producer.inputs[slot]
    return tensor


def _is_movement(facts: Facts, node: Node, graph: Graph) -> bool:
    """Whether a node of a graph only moves elements."""
    return not node.domain and node.op in _MOVEMENTS and facts.index.graph_of(node) is graph


# --- the first copy, whose initial state may have been folded into it ---


def _first_copy(
    claims: _Claims, h: Tensor, after: Tensor, nodes: list[Node], following: CellCopy
) -> CellCopy | None:
    """The copy before `following`, if these nodes compute what the cell would."""
    lifter, cell = _lifter(claims.facts, h, nodes), following.cell
    try:
        update = lifter.value(after).form
        inputs = [_previous_input(claims.facts, t, update) for t in following.inputs]
        before = [h]
        if cell.c is not None:
            before.append(_initial_cell_state(lifter, following.before[1], h))
        x = affine_forms.concat([lifter.value(t).form for t in inputs])
        expected = _time_step(cell, x, [lifter.value(t).form for t in before]).states()
        ends = [after, *following.before[1:]]
        if len(inputs) != len(following.inputs) or len(ends) != len(expected):
            return None
        if any(lifter.value(t).form.key != e.key for t, e in zip(ends, expected)):
            return None
    except Miss:
        return None
    return CellCopy(cell, inputs, before, ends, nodes, lifter)


def _previous_input(facts: Facts, following: Tensor, update: AffineForm) -> Tensor:
    """The neighbouring slice that the update reads, or the same value if it is not a slice."""
    element = axis_element(facts, following)
    read = _tensors(s.origin for s in update.inputs())
    if element is None and following in read:
        return following
    if element is not None:
        for tensor in read:
            own = axis_element(facts, tensor)
            is_neighbour = own is not None and abs(own.start - element.start) == 1
            if own is not None and is_neighbour and own == element.element(own.start):
                return tensor
    raise Miss("the input of the first copy is not found")


def _initial_cell_state(lifter: Lifter, after: Tensor, h: Tensor) -> Tensor:
    """The c that c after the first copy is computed from, or the tensor that h is."""
    for factor in _input_factors(lifter.value(after).form):
        for tensor in _tensors([factor.source.origin]):
            return tensor
    return h


def _time_step(cell: Cell, x: AffineForm, states: Sequence[AffineForm]) -> FormTimeStep:
    """A time step of the cell."""
    found, size = operator_weights(cell), 2 * len(cell.gates) * cell.h.size
    bias = np.zeros(size, x.dtype) if found.b is None else weights.reshape(found.b, (size,))
    w = [input_matrix(cell, number) for number in range(len(cell.gates))]
    r = [gate.recurrent for gate in cell.gates]
    biases = weights.split(bias, cell.h.size)
    return FormTimeStep(
        cell.op, cell.attributes, cell.functions, x, states, w, r, biases, cell.peepholes
    )
