"""What a user asserts about a model beyond the file: values, dims, shapes, prefix masks.

`Assertions.of` parses and combines what a caller states. Whether it fits a model is checked by
`looplift.rewrite.facts.apply_assertions`, which also writes it into the model.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np

from .. import symbolic
from ..errors import AssumptionError
from ..storage.redeclare import check_is_shape
from ..symbolic import Dim

Shape = tuple[int | str | None, ...]
"""Numbers, names of dims, and None for an unknown dim."""
Dims = Mapping[str, int] | Sequence[str]
"""`{"T": 16}`, or texts such as `"T=16"` and `"T>=2"`."""
Shapes = Mapping[str, Sequence[int | str | None]]
PrefixMasks = Mapping[str, int | None] | Sequence[str]
"""The time axis of each mask, by name. None, or a name without an axis, stands for axis 1 of a mask
with two or more axes, (batch, time), and for the only axis of a mask with one."""


@dataclass(frozen=True)
class Assertions:
    """What a user asserts about a model beyond the file."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Values of graph inputs; the inputs become constants."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Sizes of named dims."""
    minima: Mapping[str, int] = field(default_factory=dict)
    """Lower bounds of named dims."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes of graph inputs."""
    prefix_masks: Mapping[str, int | None] = field(default_factory=dict)
    """Values of the main graph, booleans or the numbers 0 and 1, that are true first and false from
    some time step on, with the time axis. `apply_assertions` replaces None and negative axes."""

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Any] | None = None,
        dims: Dims | None = (),
        shapes: Shapes | None = None,
        prefix_masks: PrefixMasks | None = (),
    ) -> Assertions:
        """Makes assertions from what `looplift.rewrite` takes.

        Raises AssumptionError for a text that is not a dim, for dims that contradict each other,
        for inputs that are not a dict, for shapes that are not lists, and for a mask axis that is
        not an integer.
        """
        exact, minima = _parse_dims(() if dims is None else dims)
        prefix_masks = () if prefix_masks is None else prefix_masks
        if not isinstance(inputs, Mapping | None):
            raise AssumptionError(
                f"{inputs!r} does not assert the values of inputs",
                remedy='Write a dict, such as {"x": 16000}',
            )
        if not isinstance(prefix_masks, Iterable):
            raise AssumptionError(
                f"{prefix_masks!r} does not name prefix masks",
                remedy='Write a list of names, such as ["mask"]',
            )
        names = [prefix_masks] if isinstance(prefix_masks, str) else list(prefix_masks)
        axes = prefix_masks if isinstance(prefix_masks, Mapping) else dict.fromkeys(names)
        return cls(
            dict(inputs or {}),
            exact,
            minima,
            _parse_shapes({} if shapes is None else shapes),
            {name: _axis(name, axis) for name, axis in axes.items()},
        )

    def __bool__(self) -> bool:
        """Whether anything is asserted."""
        return any((self.inputs, self.dims, self.minima, self.shapes, self.prefix_masks))

    def extended(self, more: Assertions) -> Assertions:
        """These assertions and others, which replace values, shapes and masks of the same name.

        Raises AssumptionError for dims that contradict each other.
        """
        exact, minima = _parse_dims([*self.dim_texts(), *more.dim_texts()])
        return Assertions(
            {**self.inputs, **more.inputs},
            exact,
            minima,
            {**self.shapes, **more.shapes},
            {**self.prefix_masks, **more.prefix_masks},
        )

    def dim_texts(self) -> list[str]:
        """The dims as texts, `T=16` and `T>=2`."""
        exact = [f"{name}={size}" for name, size in self.dims.items()]
        return exact + [f"{name}>={size}" for name, size in self.minima.items()]

    def dim(self, name: str) -> Dim:
        """A named dim: its number, or a symbol with its lower bound."""
        if name in self.dims:
            return self.dims[name]
        return symbolic.symbol(name, low=max(0, self.minima.get(name, 0)))

    def mask_axes(self) -> dict[str, int]:
        """The time axes of the prefix masks whose axis is known."""
        return {name: axis for name, axis in self.prefix_masks.items() if axis is not None}

    def notes(self) -> list[str]:
        """A sentence for each assertion: what a result under these assertions relies on."""
        return [
            *(f"input `{name}` is {value_text(value)}" for name, value in self.inputs.items()),
            *(f"dim `{name}` is {size}" for name, size in self.dims.items()),
            *(f"dim `{name}` is at least {size}" for name, size in self.minima.items()),
            *(f"`{name}` has shape {list(shape)}" for name, shape in self.shapes.items()),
            *(
                f"`{name}` is a prefix mask along axis {axis}: the result is wrong for a mask that "
                "becomes true again after it was false"
                for name, axis in self.prefix_masks.items()
            ),
        ]


_NOTE = re.compile(r"(input|dim) `[^`]*` is |`[^`]*` (has shape|is a prefix mask) ")


def is_assertion(note: str) -> bool:
    """Whether a note is one of `Assertions.notes`."""
    return _NOTE.match(note) is not None


def value_text(value: Any) -> str:
    """A value in a message: its elements if they are few, or else its shape."""
    array = np.asarray(value)
    return str(array.tolist()) if array.size <= 8 else f"an array of shape {list(array.shape)}"


def _parse_dims(dims: Dims) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes and the lower bounds of named dims."""
    if isinstance(dims, Mapping):
        for name, size in dims.items():
            if not str(size).isdecimal():
                raise AssumptionError(
                    f"The size of dim '{name}' is {size!r}, which is not a whole number",
                    remedy=f"Write a number, or a bound in a list: ['{name}>=2']",
                )
        dims = [f"{name}={size}" for name, size in dims.items()]
    elif isinstance(dims, str):
        dims = [dims]
    exact: dict[str, int] = {}
    minima: dict[str, int] = {}
    for text in dims:
        found = re.fullmatch(r"\s*([^<>=]+?)\s*(>=|=)\s*(\d+)\s*", str(text))
        if found is None:
            raise AssumptionError(
                f"'{text}' does not assert a dim",
                remedy="Write NAME=NUMBER or NAME>=NUMBER; equal dims get one name with --shape",
            )
        name, relation, number = found[1], found[2], _size(found[3], text)
        if relation == ">=":
            minima[name] = max(number, minima.get(name, 0))
        elif exact.setdefault(name, number) != number:
            raise AssumptionError(
                f"The dim '{name}' cannot be both {exact[name]} and {number}",
                remedy="Assert it once",
            )
    for name, low in minima.items():
        if exact.get(name, low) < low:
            raise AssumptionError(
                f"The dim '{name}' cannot be {exact[name]} and at least {low}",
                remedy="Drop one of the two",
            )
    return exact, minima


def _parse_shapes(shapes: Shapes) -> dict[str, Shape]:
    """The shapes of inputs."""
    if not isinstance(shapes, Mapping):
        raise AssumptionError(
            f"{shapes!r} does not assert the shapes of inputs",
            remedy='Write a dict of lists, such as {"x": [1, "T"]}',
        )
    for name, shape in shapes.items():
        check_is_shape(name, shape)
    return {name: tuple(_dim(name, dim) for dim in shape) for name, shape in shapes.items()}


def _dim(name: str, dim: object) -> int | str | None:
    """A dim of an asserted shape. Raises AssumptionError for what is none."""
    if dim is None or isinstance(dim, str):
        return dim
    if isinstance(dim, SupportsIndex) and not isinstance(dim, bool | np.bool_):
        size = operator.index(dim)
        if size <= np.iinfo(np.int64).max:
            return size
    raise AssumptionError(
        f"The shape of input '{name}' has a dim {dim!r}, which is no size",
        remedy='Write a number, a name, or None for an unknown dim: [1, "T", None]',
    )


MOST_DIGITS = 19
"""The digits of the largest int64; a longer number is not worth parsing."""


def _size(digits: str, text: str) -> int:
    """A size. Raises AssumptionError beyond int64, which ONNX has for sizes."""
    if len(digits.lstrip("0")) > MOST_DIGITS or int(digits) > np.iinfo(np.int64).max:
        raise AssumptionError(
            f"'{text[:80]}' asserts a size beyond 2^63 - 1", remedy="Give the real size"
        )
    return int(digits)


def _axis(name: str, axis: object) -> int | None:
    try:
        return None if axis is None else operator.index(axis)  # type: ignore[arg-type]
    except TypeError:
        raise AssumptionError(
            f"{axis!r} is not an axis of the mask '{name}'", remedy="Give the number of an axis"
        ) from None
