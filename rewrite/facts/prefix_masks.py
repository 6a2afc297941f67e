"""Prefix masks, as the user asserts them: true first and false from some time step on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from ..errors import AssumptionError
from ..graph.index import Index
from ..graph.ir import Graph, Tensor
from ..storage.model import Model, opsets
from .assertions import Assertions
from .facts import Facts, named
from .inference import facts_of
from .purity import is_pure

MOST_AXES = 2
"""The most axes of a mask with more than one element: batch and time."""


def check_mask_names(root: Graph, asserted: Assertions) -> None:
    """Checks that each asserted mask is a value of the main graph that has no given value.

    Raises AssumptionError.
    """
    masks = named(root, asserted.prefix_masks)
    for name in asserted.prefix_masks:
        if name not in masks:
            raise AssumptionError(
                f"The main graph has no value '{name}' that could be a mask",
                remedy="Name an input, or a value that the main graph computes outside all bodies",
            )
        if name in asserted.inputs:
            raise AssumptionError(
                f"Input '{name}' is given a value, so it cannot be asserted to be a mask as well",
                remedy="Drop one of the two",
            )


def with_time_axes(model: Model, asserted: Assertions) -> Assertions:
    """The assertions with the axis of each mask counted from the front.

    A mask without an axis gets the default (see `PrefixMasks`). Raises AssumptionError for an axis
    that the mask does not have, and for a value that is known not to be a prefix mask.
    """
    if not asserted.prefix_masks:
        return asserted
    facts = facts_of(Index(model.graph), opsets(model.header), asserted)
    masks = named(model.graph, asserted.prefix_masks)
    axes: dict[str, int | None] = {}
    for name, axis in asserted.prefix_masks.items():
        _check_type(facts, masks[name])
        time_axis = _time_axis(facts, masks[name], axis)
        _check_elements(facts, masks[name], time_axis)
        axes[name] = time_axis
    return replace(asserted, prefix_masks=axes)


def _check_type(facts: Facts, mask: Tensor) -> None:
    """Raises AssumptionError for what can be no mask: strings, sequences, data with features."""
    fact = facts.of(mask)
    if fact.kind != "tensor" or fact.dtype == TensorProto.STRING:
        what = "a tensor of strings" if fact.kind == "tensor" else "not a tensor"
        raise AssumptionError(
            f"'{mask.name}' is {what}, so it cannot be a mask", remedy="Name a tensor of 0 and 1"
        )
    shape = facts.shape(mask) or ()
    if sum(size != 1 for size in shape) > MOST_AXES:
        dtype = TensorProto.DataType.Name(fact.dtype).lower() if fact.dtype else "tensor"
        raise AssumptionError(
            f"'{mask.name}' is {dtype}[{', '.join(map(str, shape))}], of rank {len(shape)}, so it "
            "cannot be a mask",
            remedy="Name booleans or numbers 0 and 1 of rank 1 or 2, (time) or (batch, time); "
            "further axes must have the size 1",
        )


def _time_axis(facts: Facts, mask: Tensor, axis: int | None) -> int:
    rank = facts.rank(mask)
    if rank is None and axis is not None and axis >= 0:
        return axis
    if rank is None:
        raise AssumptionError(
            f"The rank of '{mask.name}' is not known",
            remedy="Give its time axis, counted from the front: "
            f'"{mask.name} axis 1" on the command line, {{"{mask.name}": 1}} in Python',
        )
    if rank == 0:
        raise AssumptionError(
            f"'{mask.name}' is a scalar, so it cannot be a mask",
            remedy="Name a tensor with a time axis",
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


def _check_elements(facts: Facts, mask: Tensor, axis: int) -> None:
    """Raises AssumptionError if elements that are known contradict a prefix mask."""
    whole = facts.constant(mask)
    numbers = [value for value in facts.of(mask).values or () if isinstance(value, int)]
    if any(n not in (0, 1) for n in numbers) or (
        whole is not None and not is_prefix_mask(whole, axis)
    ):
        raise AssumptionError(
            f"'{mask.name}' is known not to be a prefix mask along axis {axis}",
            remedy="Name a tensor of 0 and 1 that never becomes 1 again after a 0",
        )


def find_prefix_masks(facts: Facts) -> None:
    """Records the tensors of the asserted masks, and the tensors that equal them, in `facts`."""
    masks, axes = facts.prefix_masks, facts.assertions.mask_axes()
    for name, mask in named(facts.index.root, axes).items():
        masks[mask] = axes[name]
    for mask, axis in list(masks.items()):
        node = facts.index.producer(mask)
        if node is None or not is_pure(node, facts.index):
            continue
        place = node.outputs.index(mask)
        for twin in (each for pair in facts.value_numbering.equal_nodes(node) for each in pair):
            masks.setdefault(twin.outputs[place], axis)
