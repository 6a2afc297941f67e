"""Where the batch and the features of a value stand among its axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.symbolic import Dim
from .values import Batch, Value
from .weights import Array


@dataclass(frozen=True)
class Layout:
    """One axis at most is the batch; axes that are neither it nor features have size 1."""

    rank: int
    features: tuple[int, ...]
    """The axes of the features, in row-major order: several where gates or layers have their own."""
    sizes: tuple[int, ...]
    """Of the features."""
    batch: int | None
    size: Dim
    """Of the batch; 1 where there is none."""

    @property
    def kept(self) -> list[int]:
        """The batch, if there is one, and the features."""
        return [*([] if self.batch is None else [self.batch]), *self.features]

    @property
    def units(self) -> list[int]:
        return [k for k in range(self.rank) if k not in self.kept]

    @property
    def order(self) -> list[int]:
        """The batch and the features by their places once the other axes are gone."""
        there = sorted(self.kept)
        return [there.index(axis) for axis in self.kept]

    def rows(self, array: Array) -> Array:
        """An array of this layout as (batch, features)."""
        turned = array.transpose([*self.units, *self.kept])
        count = 1 if self.batch is None else array.shape[self.batch]
        return np.reshape(turned, (count, -1))


def layout_of(value: Value) -> Layout | None:
    """None where a value has several batch axes."""
    axes = value.axes
    batch = [k for k, a in enumerate(axes) if isinstance(a, Batch)]
    plain = [k for k in range(len(axes)) if k not in batch]
    if len(batch) > 1:
        return None
    features = tuple([k for k in plain if axes[k] != 1] or plain[-1:])
    sizes = tuple(a for a in (axes[k] for k in features) if isinstance(a, int))
    if batch:
        size = axes[batch[0]]
        assert isinstance(size, Batch)
        return Layout(len(axes), features, sizes, batch[0], size.size)
    unit = next((k for k in plain if k not in features), None)
    return Layout(len(axes), features, sizes, unit, 1)
