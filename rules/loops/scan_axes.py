"""The axis that a Scan reads a tensor along."""

from __future__ import annotations

from ...rewrite.engine.patch import Patch
from ...rewrite.facts import symbolic
from ...rewrite.facts.symbolic import Dim
from ...rewrite.graph.ir import Tensor


def ready_to_scan(patch: Patch, x: Tensor, axis: int, shape: tuple[Dim, ...]) -> tuple[Tensor, int]:
    """What a Scan reads instead of `x`, of this shape, along an axis, and the axis it then takes.

    onnxruntime transposes what is scanned along any axis but the first, and in doing so its process
    dies of a division by zero where the tensor has no elements (version 1.31). A Transpose node
    takes as long and does not.
    """
    others = [size for place, size in enumerate(shape) if place != axis]
    if axis == 0 or all(symbolic.positive(size) for size in others):
        return x, axis
    perm = [axis, *(place for place in range(len(shape)) if place != axis)]
    return patch.node("Transpose", [x], [x], {"perm": perm})[0], 0
