"""Why an update is that of no LSTM, GRU or RNN, in the terms of those who wrote the cell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import TOTAL_ELEMENTWISE
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from .atoms import Activation, Factor, Picked, Product, Source
from .cells import OVERFLOWING, Dependency, NoCell, Part
from .coefficients import Pick
from .forms import Form
from .lifting import Invariant, Unknown
from .masks import LENGTH_PREFIX
from .prefix_masks import asserted_otherwise

NO_UPDATE = "the update of {} is that of no LSTM, GRU or RNN"
"""What is said where nothing more telling is known."""
NO_STATE = "no state keeps its shape and is of a float type"
_MOST_NODES = 64
"""As many nodes around an obstacle are looked at to give it a name."""
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv"})
_NORMALIZATIONS = frozenset(
    {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization",
     "MeanVarianceNormalization", "RMSNormalization"}
)  # fmt: skip
_ROOTS = frozenset({"Pow", "Sqrt"})


def obstacle(h: Part) -> NoCell:
    """What is in the way of a cell, as far as one value is to blame."""
    for factor in _factors(h.update):
        if isinstance(factor, Picked) and isinstance(factor.source.origin, Unknown):
            return Dependency(factor.source.origin, is_factor=True)
    for source in h.update.sources():
        if isinstance(source.origin, Unknown):
            return Dependency(source.origin)
    if OVERFLOWING in _functions_in(h.update):
        return NoCell("{} overflows inside onnxruntime's recurrent operators", OVERFLOWING)
    for factor in _factors(h.update):
        if isinstance(factor, Picked) and isinstance(factor.source.origin, SliceRead):
            return NoCell(
                "the update of {} is multiplied by slices of {}: such a mask or decay is data, "
                + LENGTH_PREFIX,
                _tensor(h.source),
                factor.source.origin.sequence,
            )
        if isinstance(factor, Picked) and isinstance(factor.source.origin, Invariant):
            return NoCell("the update of {} is multiplied by {}, which is computed outside the loop",
                          _tensor(h.source), factor.source.origin.value)  # fmt: skip
    if _keeps_a_share(h):
        return NoCell("a fixed share of {} is kept (zoneout): no operator does", _tensor(h.source))
    if any(not isinstance(a, Source) and not isinstance(c, Pick) for a, c in h.update.atoms):
        return NoCell("{} is a matrix times what the cell computes: no operator has a projection",
                      _tensor(h.source))  # fmt: skip
    return NoCell(NO_UPDATE, _tensor(h.source))


def _tensor(source: Source) -> object:
    return source.origin.input if isinstance(source.origin, CarriedValue) else source.origin


def _factors(form: Form) -> Iterator[Factor]:
    for atom, _ in form.atoms:
        if isinstance(atom, Product):
            yield from atom.factors


def _keeps_a_share(h: Part) -> bool:
    """Whether a part is added to the rest as it was, times numbers between 0 and 1."""
    share = h.scale_in(h.update)
    if not isinstance(share, np.ndarray) or len(h.update.terms) < 2:
        return False
    return bool(np.all((share > 0) & (share < 1)))


def _functions_in(form: Form) -> set[str]:
    """The activations that a form is made of, at whatever depth."""
    found: set[str] = set()
    waiting = [form]
    while waiting:
        for atom, _ in waiting.pop().atoms:
            for factor in atom.factors if isinstance(atom, Product) else (atom,):
                if isinstance(factor, Activation):
                    found.add(factor.function)
                    waiting.append(factor.argument)
    return found


# --- what a value that has no form is part of ---


def explained(facts: Facts, steps: CountedLoop, reason: NoCell) -> NoCell:
    """The reason, with the name of what the node in the way is part of, or the sizes in the way, or
    the axis along which a mask is asserted instead.
    """
    found = _named(facts, steps, reason)
    otherwise = asserted_otherwise(facts, steps.reads)
    told = [text for text in (found.sentence, *found.given) if isinstance(text, str)]
    if otherwise is None or not any(LENGTH_PREFIX in text for text in told):
        return found
    return NoCell("the mask {} is asserted along axis {}, but the loop steps along axis {}, where it is "
                  + LENGTH_PREFIX, *otherwise)  # fmt: skip


def _named(facts: Facts, steps: CountedLoop, reason: NoCell) -> NoCell:
    if reason.sentence == NO_STATE:
        return _different_sizes(facts, steps) or reason
    if not isinstance(reason, Dependency):
        return reason
    node = reason.origin.node
    around = [node, *_before(facts, node)]
    convolution = next((n for n in around if n.op in _CONVOLUTIONS), None)
    if convolution is not None and _needs_state(facts, steps, convolution):
        return NoCell("{} is a convolution in place of a product: no operator has it", convolution)
    if _normalizes(facts, node):
        return NoCell("{} belongs to a layer normalisation: no operator has it", node)
    mask = reason.origin.tensor if reason.is_factor else None
    if mask is None or _needs_state(facts, steps, node):
        mask = _data_on_state(facts, steps, node)
    if mask is not None:
        return NoCell("the mask {} is data: " + LENGTH_PREFIX, mask)
    return reason


def _different_sizes(facts: Facts, steps: CountedLoop) -> NoCell | None:
    """Where the body broadcasts two sizes that may be the same and are not known to be.

    The size of a state that is not known to keep it is told by the first value.
    """
    told: dict[Dim, Dim] = {}
    for state in steps.carried:
        told |= zip(facts.shape(state.input) or (), facts.shape(state.initial) or ())
    for node in facts.index.nodes(steps.body):
        operands = [t for t in node.inputs if t.name]
        if node.domain or node.op not in TOTAL_ELEMENTWISE or len(operands) < 2:
            continue
        shapes = [facts.shape(t) or () for t in (*operands[:2], node.outputs[0])]
        for sizes in zip(*map(reversed, shapes)):
            one, other = (told.get(size, size) for size in sizes[:2])
            if one == other:
                told[sizes[2]] = one
            elif not any(
                isinstance(n, int) or facts.varies_in(n, steps.body) for n in (one, other)
            ):
                return NoCell(
                    "no state keeps its shape: {} joins sizes {} and {}; "
                    "if they are the same, --shape gives them one name",
                    node, one, other,
                )  # fmt: skip
    return None


def _data_on_state(facts: Facts, steps: CountedLoop, node: Node) -> Tensor | None:
    """What a product or a choice applies to a state, where the body computes it from data alone."""
    if node.op not in ("Mul", "Where"):
        return None
    producers = {t: facts.index.producer(t) for t in node.inputs}
    states = {s.input for s in steps.carried}
    needing = {t for t, n in producers.items() if n is not None and _needs_state(facts, steps, n)}
    for tensor, producer in producers.items():
        inside = producer is not None and facts.index.graph_of(producer) is steps.body
        if inside and tensor not in needing and needing | (states & set(node.inputs)):
            return tensor
    return None


def _normalizes(facts: Facts, node: Node) -> bool:
    """Whether a node is a normalisation, or one of the steps of one: a mean, and a root of one."""
    if node.op in _NORMALIZATIONS:
        return True
    means = [n for n in (node, *_before(facts, node)) if n.op == "ReduceMean"]
    around = (n for mean in means[:1] for n in (mean, *_behind(facts, mean)))
    return any(n.op in _ROOTS for n in around)


def _needs_state(facts: Facts, steps: CountedLoop, node: Node) -> bool:
    states = {s.input for s in steps.carried}
    return any(t in states for n in (node, *_before(facts, node)) for t in n.inputs)


def _before(facts: Facts, node: Node) -> list[Node]:
    """What the node needs, in the same graph."""
    graph = facts.index.graph_of(node)

    def producers(of: Node) -> Iterator[Node]:
        for tensor in of.inputs:
            producer = facts.index.producer(tensor)
            if producer is not None and facts.index.graph_of(producer) is graph:
                yield producer

    return _reached(node, producers)


def _behind(facts: Facts, node: Node) -> list[Node]:
    """What needs the node."""
    return _reached(node, lambda of: (n for t in of.outputs for n in facts.index.consumers(t)))


def _reached(node: Node, step: Callable[[Node], Iterable[Node]]) -> list[Node]:
    found: dict[Node, None] = {}
    waiting = deque([node])
    while waiting and len(found) < _MOST_NODES:
        for other in step(waiting.popleft()):
            if other not in found:
                found[other] = None
                waiting.append(other)
    return list(found)
