"""Prefix masks, as the user asserts them: true first and false from some time step on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from ..errors import AssumptionError
from ..graph.index import Index
from ..graph.ir import Graph, Node, Tensor, bodies
from ..storage.model import Model, opsets
from .assertions import Assertions
from .facts import Facts, named
from .inference import facts_of
from .purity import MIRRORED, is_pure

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
        _check_no_length(facts, masks[name])
        time_axis = _time_axis(facts, masks[name], axis)
        _check_elements(facts, masks[name], time_axis)
        axes[name] = time_axis
    return replace(asserted, prefix_masks=axes)


def _check_type(facts: Facts, mask: Tensor) -> None:
    """Raises AssumptionError for what cannot be a mask: strings, sequences, data with features."""
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


_MOVES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"})
"""Operators whose results consist of elements of their first operand."""


def _check_no_length(facts: Facts, tensor: Tensor) -> None:
    """Raises AssumptionError for lengths: numbers that are compared with positions."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        value = waiting.pop()
        for node, slot in facts.index.uses(value):
            if not isinstance(node, Node) or node.domain:
                continue
            if node.op in MIRRORED and _are_positions(facts, node.inputs[1 - slot]):
                raise AssumptionError(
                    f"'{tensor.name}' is compared with positions, so it is a length, not a mask",
                    remedy="Leave out the assertion: rules recognise lengths from the comparison",
                )
            if node.op in _MOVES and slot == 0:
                waiting += [each for each in node.outputs if each not in seen]
                seen.update(node.outputs)


def _are_positions(facts: Facts, tensor: Tensor) -> bool:
    """Whether a value is an iteration number, a Range, or a constant such as 0, 1, 2, …."""
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and node.op in _MOVES:
        tensor = node.inputs[0]
        node = facts.index.producer(tensor)
    constant = facts.constant(tensor)
    if constant is not None:
        return constant.size > 2 and bool(np.all(np.diff(constant.ravel()) == 1))
    home = facts.index.home(tensor)
    owner = None if home is None else facts.index.owner(home)
    if node is not None:
        return node.op == "Range" and not node.domain
    return owner is not None and owner.op == "Loop" and tensor is bodies(owner)[0].inputs[0]


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
