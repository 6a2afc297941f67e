"""Explains why the update of a state is not that of an LSTM, GRU or RNN.

The reasons name what the author of a model wrote: a layer normalisation, a convolution, a mask, a
projection, zoneout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import TOTAL_ELEMENTWISE
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim, file_name
from .affine_forms import (
    ActivatedForm,
    AffineForm,
    ColumnSelection,
    ElementwiseProduct,
    Factor,
    InputFeatures,
    Monomial,
    SymbolicInput,
)
from .cells import (
    OVERFLOWING_ACTIVATION,
    SUPPORTED_ACTIVATIONS,
    RecurrentState,
    UnliftedDependency,
)
from .length_masks import UNKNOWN_MASK, mask_of_another_axis
from .lifting import LoopInvariant, UnliftedValue

UNKNOWN_UPDATE = "the update of {} is not that of an LSTM, GRU or RNN"
"""The reason where no better one is found."""
EXTERNAL_GATE = (
    "{} computes a gate outside of the recurrence, by which the update is multiplied; LSTM, GRU and "
    "RNN have no such gate"
)
INPUT_FACTOR = (
    "the update of {} has a product with slices of {}; LSTM, GRU and RNN multiply only states and "
    "activations"
)
ONE_NAME = "if they are equal, give them one name with --shape"
"""What reasons say of two dims of the file that are not known to be equal."""
NO_STATE = "no carried value keeps its shape and has a float type"
_MOST_NODES = 64
"""The most nodes around a value that are searched for what it is part of."""
_ACTIVATIONS = SUPPORTED_ACTIVATIONS | {"Softmax"}
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv"})
_NORMALIZATIONS = frozenset(
    {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization",
     "MeanVarianceNormalization", "RMSNormalization"}
)  # fmt: skip
_ROOTS = frozenset({"Pow", "Sqrt"})
_MOVES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


# --- from the update alone ---


def why_no_cell(h: RecurrentState) -> Miss:
    """Why the update of a state is not that of a cell, from the update alone."""
    state = h.source.origin.input if isinstance(h.source.origin, CarriedValue) else h.source.origin
    factors = [f.source.origin for f in _factors(h.update) if isinstance(f, InputFeatures)]
    for origin in factors:
        if isinstance(origin, UnliftedValue):
            return UnliftedDependency(origin, is_factor=True)
    for source in h.update.inputs():
        if isinstance(source.origin, UnliftedValue):
            return UnliftedDependency(source.origin)
    if OVERFLOWING_ACTIVATION in _functions_in(h.update):
        return Miss("{} overflows in the LSTM, GRU and RNN of onnxruntime", OVERFLOWING_ACTIVATION)
    if _only_moves(h):
        return Miss(
            "{} moves elements without arithmetic (such as a buffer of the last inputs), which is no "
            "LSTM, GRU or RNN",
            state,
        )
    if _is_linear(h):
        return Miss(
            "{} is a linear recurrence (s' = a*s + b, such as a moving average), which no operator "
            "computes",
            state,
        )
    other = _other_linear_state(h)
    found = (_factor_reason(h, state) if other is None else None) or _share_reason(h, state, other)
    if found is not None:
        return found
    if any(
        not isinstance(m, SymbolicInput) and not isinstance(c, ColumnSelection)
        for m, c in h.update.terms.values()
    ):
        return Miss(
            "{} is the output of the cell times a matrix: no operator has a projection", state
        )
    return Miss(UNKNOWN_UPDATE, state)


def _factor_reason(h: RecurrentState, state: object) -> Miss | None:
    """Why no cell has the products of an update, if they have factors from outside of it."""
    masks = [f.source.origin for f in _factors_of_state(h) if isinstance(f, InputFeatures)]
    factors = [f.source.origin for f in _factors(h.update) if isinstance(f, InputFeatures)]
    for origin in (*masks, *factors):
        if isinstance(origin, SliceRead):
            if origin not in masks:
                return Miss(INPUT_FACTOR, state, origin.sequence)
            return Miss(
                f"the update of {{}} is multiplied by slices of {{}}, data that is {UNKNOWN_MASK}",
                state, origin.sequence,
            )  # fmt: skip
        if isinstance(origin, LoopInvariant):
            return Miss(
                "the update of {} is multiplied by {}, which is computed outside the loop",
                state, origin.value,
            )  # fmt: skip
    return None


def _share_reason(h: RecurrentState, state: object, other: Tensor | None) -> Miss | None:
    """Why no cell keeps the share of the state that an update keeps.

    `other` is another carried value, if the update is linear in both.
    """
    share = h.scale_in(h.update) if len(h.update.terms) > 1 else None
    if isinstance(share, np.ndarray) and np.all(share == 1):
        return Miss(
            "the update adds to {} (an Euler or residual step), which no operator does", state
        )
    if other is not None:
        return Miss(
            "the update of {} is linear in it and in {} (such as a filter of second order), which "
            "no operator computes",
            state, other,
        )  # fmt: skip
    if isinstance(share, np.ndarray) and np.all((share > 0) & (share < 1)):
        return Miss(
            "the cell keeps a fixed share of {} (leaky unit, zoneout), which no operator does",
            state,
        )
    return None


def _factors(form: AffineForm) -> Iterator[Factor]:
    for monomial, _ in form.terms.values():
        if isinstance(monomial, ElementwiseProduct):
            yield from monomial.factors


def _factors_of_state(h: RecurrentState) -> Iterator[Factor]:
    """The factors that the update multiplies the state itself by, as a mask does."""
    for monomial, _ in h.update.terms.values():
        if isinstance(monomial, ElementwiseProduct):
            states = [
                f
                for f in monomial.factors
                if not isinstance(f, ActivatedForm)
                and any(source.key == h.source.key for source in f.inputs())
            ]
            if states:
                yield from (f for f in monomial.factors if f not in states)


def _only_moves(h: RecurrentState) -> bool:
    """Whether each feature of the update is one of a state or input, but not all as before."""
    used = np.zeros(h.update.width, np.int64)
    for monomial, coefficient in h.update.terms.values():
        if not isinstance(monomial, SymbolicInput) or not isinstance(coefficient, ColumnSelection):
            return False
        is_used, scale = coefficient.columns >= 0, coefficient.scale
        if not isinstance(scale, np.ndarray) or not np.all(scale[is_used] == 1):
            return False
        used += is_used
    share = h.scale_in(h.update)
    return (
        share is None
        and isinstance(h.update.bias, np.ndarray)
        and bool(np.all(used + (h.update.bias != 0) <= 1))
    )


def _is_carried(part: Monomial | Factor) -> bool:
    return any(isinstance(source.origin, CarriedValue) for source in part.inputs())


def _other_linear_state(h: RecurrentState) -> Tensor | None:
    """Another carried value, if the update is linear in the state and in that one."""
    states: dict[bytes, Tensor] = {}
    for monomial, _ in h.update.terms.values():
        parts = monomial.factors if isinstance(monomial, ElementwiseProduct) else (monomial,)
        carried = [part for part in parts if _is_carried(part)]
        if len(carried) > 1 or not all(
            isinstance(p, SymbolicInput | InputFeatures) for p in carried
        ):
            return None
        for source in (source for part in carried for source in part.inputs()):
            if isinstance(source.origin, CarriedValue):
                states[source.key] = source.origin.input
    if states.pop(h.source.key, None) is None:
        return None
    return next(iter(states.values()), None)


def _is_linear(h: RecurrentState) -> bool:
    """Whether the update is s' = a * s + b, where a and b depend on no carried value."""
    dependent = [(m, c) for m, c in h.update.terms.values() if _is_carried(m)]
    if not dependent:
        return False
    for monomial, coefficient in dependent:
        if not isinstance(coefficient, ColumnSelection):
            return False
        if isinstance(monomial, ElementwiseProduct):
            states = [factor for factor in monomial.factors if _is_carried(factor)]
            if len(states) != 1 or not h.is_factor(states[0]):
                return False
        elif monomial.key != h.source.key:
            return False
    is_unchanged = len(h.update.terms) == 1 and isinstance(dependent[0][0], SymbolicInput)
    return not is_unchanged


def _functions_in(form: AffineForm) -> set[str]:
    """The functions that a form contains at any depth."""
    found: set[str] = set()
    waiting = [form]
    while waiting:
        for monomial, _ in waiting.pop().terms.values():
            product = monomial if isinstance(monomial, ElementwiseProduct) else None
            for factor in (monomial,) if product is None else product.factors:
                if isinstance(factor, ActivatedForm):
                    found.add(factor.function)
                    waiting.append(factor.argument)
    return found


# --- from the body of the loop ---


def explain(facts: Facts, loop: CountedLoop, reason: Miss) -> Miss:
    """A more specific reason than the given one, if the body of the loop gives one."""
    found = _explained(facts, loop, reason)
    if UNKNOWN_MASK not in str(found):
        return found
    mask = found.values[-1] if found.values else None
    gate = _external_gate(facts, loop, mask)
    if gate is not None:
        return Miss(EXTERNAL_GATE, gate)
    if isinstance(mask, Tensor) and _counts_iterations(facts, loop, mask):
        return Miss(
            "{} is decided by the number of the iteration, but not by whether it is below a length",
            mask,
        )
    other = mask_of_another_axis(facts, loop.reads)
    if other is None:
        return found
    return Miss(
        "the mask {} is asserted along axis {}, but the loop runs along axis {}, where it is "
        f"{UNKNOWN_MASK}",
        *other,
    )


def _external_gate(facts: Facts, loop: CountedLoop, factor: object) -> Node | None:
    """The activation outside the recurrence that a float factor of an update is computed with."""
    sequences = {read.slice: read.sequence for read in loop.reads}

    def producers(tensors: Iterable[Tensor]) -> Iterator[Node]:
        for tensor in tensors:
            node = facts.index.producer(sequences.get(tensor, tensor))
            if node is not None and facts.dtype(node.outputs[0]) in FLOAT_OR_DOUBLE:
                yield node

    def operands(node: Node) -> Iterator[Node]:
        if not node.domain and node.op in _MOVES | {"Add", "Mul", "Sub"}:
            yield from producers(node.inputs)

    first = next(producers([factor] if isinstance(factor, Tensor) else ()), None)
    nodes = () if first is None else (first, *_reached(first, operands))
    return next((n for n in nodes if n.op in _ACTIVATIONS and not n.domain), None)


def _counts_iterations(facts: Facts, loop: CountedLoop, tensor: Tensor) -> bool:
    """Whether a value is computed from nothing but the iteration number and constants."""
    producer = facts.index.producer(tensor)
    if producer is None or facts.index.graph_of(producer) is not loop.body:
        return False
    nodes = [producer, *_ancestors(facts, producer)]
    results = {t for node in nodes for t in node.outputs}
    leaves = {t for node in nodes for t in node.inputs if t.name and t not in results}
    return all(t is loop.iteration or facts.is_constant(t) for t in leaves)


def _explained(facts: Facts, loop: CountedLoop, reason: Miss) -> Miss:
    if reason.sentence == NO_STATE:
        return _mismatched_sizes(facts, loop) or reason
    if not isinstance(reason, UnliftedDependency):
        return reason
    node = reason.origin.node
    around = [node, *_ancestors(facts, node)]
    convolution = next((n for n in around if n.op in _CONVOLUTIONS), None)
    if convolution is not None and _depends_on_state(facts, loop, convolution):
        return Miss("{} is a convolution in place of a product, which no operator has", convolution)
    if node.op == "Where" and (choice := _needs_a_loop(facts, loop, node)) is not None:
        return choice
    if _is_normalization(facts, node):
        return Miss("{} belongs to a layer normalisation, which no operator has", node)
    mask = reason.origin.tensor if reason.is_factor else None
    if mask is None or _depends_on_state(facts, loop, node):
        mask = _data_applied_to_state(facts, loop, node)
    if mask is not None:
        return Miss(f"the mask {{}} is data that is {UNKNOWN_MASK}", mask)
    return reason


def _mismatched_sizes(facts: Facts, loop: CountedLoop) -> Miss | None:
    """The first node that broadcasts two open sizes that may be equal but are not known to be.

    A state that is not known to keep a size counts as one of its initial size.
    """
    initial: dict[Dim, Dim] = {}
    for state in loop.carried:
        initial |= zip(facts.shape(state.input) or (), facts.shape(state.initial) or ())
    for node in facts.index.nodes(loop.body):
        operands = [t for t in node.inputs if t.name]
        if node.domain or node.op not in TOTAL_ELEMENTWISE or len(operands) < 2:
            continue
        shapes = [facts.shape(t) or () for t in (*operands[:2], node.outputs[0])]
        for sizes in zip(*map(reversed, shapes)):
            one, other = (initial.get(size, size) for size in sizes[:2])
            if one == other:
                initial[sizes[2]] = one
            elif not any(isinstance(n, int) or facts.varies_in(n, loop.body) for n in (one, other)):
                named = None not in (file_name(one), file_name(other))
                advice = f"; {ONE_NAME}" if named else ", which are not known to be equal"
                return Miss(
                    f"no carried value keeps its shape: {{}} broadcasts sizes {{}} and {{}}{advice}",
                    node, one, other,
                )  # fmt: skip
    return None


def _needs_a_loop(facts: Facts, loop: CountedLoop, choice: Node) -> Miss | None:
    """Why row lengths cannot decide a Where: its mask or a branch depends on carried values."""
    index, states = facts.index, {s.input: s for s in loop.carried}
    mask, *branches = map(index.original, choice.inputs)
    producer = index.producer(mask)
    if mask in states or (producer is not None and _depends_on_state(facts, loop, producer)):
        return Miss("the choice by {} depends on the carried values", mask)
    for branch in branches:
        state = states.get(branch)
        if state is not None and _moved_from(facts, state.output) is not choice:
            return Miss(
                "its input depends on the carried value {}, which {} chooses", branch, choice
            )
    return None


def _moved_from(facts: Facts, tensor: Tensor) -> Node | None:
    """The node that computes a value, before operators that only move or cast its elements."""
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and node.op in _MOVES:
        node = facts.index.producer(node.inputs[0])
    return node


def _data_applied_to_state(facts: Facts, loop: CountedLoop, node: Node) -> Tensor | None:
    """The operand of a Mul or Where that the body computes without the states it is applied to."""
    if node.op not in ("Mul", "Where"):
        return None
    producers = {t: facts.index.producer(t) for t in node.inputs}
    states = {s.input for s in loop.carried}
    dependent = {
        t for t, n in producers.items() if n is not None and _depends_on_state(facts, loop, n)
    }
    for tensor, producer in producers.items():
        is_inside = producer is not None and facts.index.graph_of(producer) is loop.body
        if is_inside and tensor not in dependent and dependent | (states & set(node.inputs)):
            return tensor
    return None


def _is_normalization(facts: Facts, node: Node) -> bool:
    """Whether a node is a normalisation, or belongs to one: a mean with a root after it."""
    if node.op in _NORMALIZATIONS:
        return True
    means = [n for n in (node, *_ancestors(facts, node)) if n.op == "ReduceMean"]
    around = (n for mean in means[:1] for n in (mean, *_descendants(facts, mean)))
    return any(n.op in _ROOTS for n in around)


def _depends_on_state(facts: Facts, loop: CountedLoop, node: Node) -> bool:
    states = {s.input for s in loop.carried}
    return any(t in states for n in (node, *_ancestors(facts, node)) for t in n.inputs)


def _ancestors(facts: Facts, node: Node) -> list[Node]:
    """The nodes of the same graph that a node depends on."""
    graph = facts.index.graph_of(node)

    def producers(of: Node) -> Iterator[Node]:
        for tensor in of.inputs:
            producer = facts.index.producer(tensor)
            if producer is not None and facts.index.graph_of(producer) is graph:
                yield producer

    return _reached(node, producers)


def _descendants(facts: Facts, node: Node) -> list[Node]:
    """The nodes that depend on a node."""
    return _reached(node, lambda of: (n for t in of.outputs for n in facts.index.consumers(t)))


def _reached(node: Node, neighbours: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """The nodes reached from a node, nearest first."""
    found: dict[Node, None] = {}
    waiting = deque([node])
    while waiting and len(found) < _MOST_NODES:
        for other in neighbours(waiting.popleft()):
            if other not in found:
                found[other] = None
                waiting.append(other)
    return list(found)
