"""What the user asserts to be prefix masks: each row is true first and false from some step on."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from ..errors import AssumptionError
from ..graph.index import Index
from ..graph.ir import Graph, Tensor
from ..storage.model import Model, opsets
from .facts import Assumptions, Facts, named
from .inference import facts_of
from .purity import is_pure

PrefixMasks = Mapping[str, int | None] | Sequence[str]
"""The axis that is the time, by name. For None, and where only names are given, it is axis 1 of a
mask of two or more axes, (batch, time), and the axis of a mask that has one."""


def checked_names(
    root: Graph, fixed: Mapping[str, object], masks: PrefixMasks
) -> dict[str, int | None]:
    """The axis asserted for each name; a single text is one name.

    Raises AssumptionError for what is no value of the main graph or known anyhow, and for an axis
    that is no integer.
    """
    names = [masks] if isinstance(masks, str) else list(masks)
    axes = masks if isinstance(masks, Mapping) else dict.fromkeys(names)
    found = named(root, names)
    for name in names:
        if name not in found:
            raise AssumptionError(
                f"The main graph has no value '{name}' that could be a mask",
                remedy="Name an input, or what a node outside of all bodies computes",
            )
        if name in fixed:
            raise AssumptionError(
                f"Input '{name}' is given a value, so nothing else can be asserted of it",
                remedy="Drop one of the two",
            )
    return {name: _integer(name, axis) for name, axis in axes.items()}


def _integer(name: str, axis: object) -> int | None:
    try:
        return None if axis is None else operator.index(axis)  # type: ignore[arg-type]
    except TypeError:
        raise AssumptionError(
            f"{axis!r} is no axis of the mask '{name}'", remedy="Give the number of an axis"
        ) from None


def time_axes(
    model: Model, assumptions: Assumptions, asserted: Mapping[str, int | None]
) -> dict[str, int]:
    """The axes counted from the front, with the one that is meant where none is named.

    Raises AssumptionError for what is surely no mask.
    """
    if not asserted:
        return {}
    facts = facts_of(Index(model.graph), opsets(model.header), assumptions)
    masks = named(model.graph, asserted)
    axes = {}
    for name, axis in asserted.items():
        _check_type(facts, masks[name])
        axes[name] = _time_axis(facts, masks[name], axis)
        _check_numbers(facts, masks[name], axes[name])
    return axes


def _check_type(facts: Facts, mask: Tensor) -> None:
    """Raises AssumptionError for texts, and for sequences and optionals."""
    fact = facts.of(mask)
    if fact.kind != "tensor" or fact.dtype == TensorProto.STRING:
        what = "texts" if fact.kind == "tensor" else "no tensor"
        raise AssumptionError(
            f"'{mask.name}' holds {what} and is no mask", remedy="Name a tensor of 0 and 1"
        )


def _time_axis(facts: Facts, mask: Tensor, axis: int | None) -> int:
    rank = facts.rank(mask)
    if rank is None and axis is not None and axis >= 0:
        return axis
    if rank is None:
        raise AssumptionError(
            f"It is not known how many axes '{mask.name}' has",
            remedy="Say which of them is the time, counted from the front: "
            f'"{mask.name} axis 1" on the command line, {{"{mask.name}": 1}} in Python',
        )
    if rank == 0:
        raise AssumptionError(
            f"'{mask.name}' is a single value and no mask",
            remedy="Name a tensor with an axis for the time",
        )
    meant = min(rank - 1, 1) if axis is None else axis
    if not -rank <= meant < rank:
        raise AssumptionError(
            f"The mask '{mask.name}' has no axis {meant}",
            remedy=f"Its axes are 0 to {rank - 1}" if rank > 1 else "Its only axis is 0",
        )
    return meant % rank


def is_prefix_mask(value: object, axis: int) -> bool:
    """Whether an array is 1 first and 0 from some position on along an axis."""
    array = np.asarray(value).astype(float)
    if axis >= array.ndim or not np.all((array == 0) | (array == 1)):
        return False
    return bool(np.all(np.diff(array, axis=axis) <= 0))


def _check_numbers(facts: Facts, mask: Tensor, axis: int) -> None:
    """Raises AssumptionError for numbers known without data that no prefix mask has."""
    whole = facts.constant(mask)
    numbers = [value for value in facts.of(mask).values or () if isinstance(value, int)]
    if any(n not in (0, 1) for n in numbers) or (
        whole is not None and not is_prefix_mask(whole, axis)
    ):
        raise AssumptionError(
            f"'{mask.name}' is no prefix mask along axis {axis}: some of it is known without data",
            remedy="Name a tensor of 0 and 1",
        )


def take_masks(facts: Facts) -> None:
    """Finds the asserted masks in the graph as it stands, and what computes the same."""
    masks, asserted = facts.prefix_masks, facts.assumptions.prefix_masks
    for name, mask in named(facts.index.root, asserted).items():
        masks[mask] = asserted[name]
    for mask, axis in list(masks.items()):
        node = facts.index.producer(mask)
        if node is None or not is_pure(node, facts.index):
            continue
        place = node.outputs.index(mask)
        for twin in (each for pair in facts.value_numbering.equal_nodes(node) for each in pair):
            masks.setdefault(twin.outputs[place], axis)
