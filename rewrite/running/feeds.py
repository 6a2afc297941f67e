"""Made-up values for the inputs of a model: seeded, and of a kind that models can work with.

Integers are small, because most are lengths, indices or counts. A scalar also takes the values
the model compares it with and their neighbours, so that both branches of an If are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..storage.protos import nodes, owners
from .runtime import Array, Feed, Refused, Value
from .signature import Input, OptionalInput, SequenceInput, Signature, Sizes, TensorInput

INDICES, LENGTHS = "indices", "lengths"
INTEGER_STYLES = (INDICES, LENGTHS)
"""How integers are drawn: from 0 to below the smallest size, or from 1 to the smallest size."""

LARGEST_INTEGER = 8
SEQUENCE_LENGTHS = (2, 1, 3, 0)
WORDS = ("a", "b", "word", "")
COUNTS = (3, 1, 0, 2)

Scalars = Mapping[str, Sequence[Any]]
"""For each input the constants it is compared with."""


@dataclass(frozen=True)
class Draw:
    """Which values to take: those of one number are the same in every process."""

    number: int
    seed: int = 0
    integers: str = INDICES
    pinned: Mapping[str, Any] = field(default_factory=dict)
    """Values that inputs of one element have."""
    prefix_masks: Mapping[str, int] = field(default_factory=dict)
    """Inputs that are true first and false from some place on, with the axis along which."""


def make_feed(signature: Signature, sizes: Sizes, draw: Draw, compared: Scalars) -> Feed:
    """Values for all inputs of a signature, under an assignment of sizes to its open dims.

    Raises `Refused` for a prefix mask without the axis that it has by assertion.
    """
    bound = smallest_size(signature, sizes)
    feed: Feed = {}
    pace = 0
    for position, (name, given) in enumerate(signature.inputs.items()):
        pool = tuple(_pool(given, signature, sizes, compared.get(name, ())))
        if pool and name in draw.pinned:
            pool = (draw.pinned[name],)
        source = _Source(signature, sizes, draw, position, pace, pool, bound)
        if name in draw.prefix_masks and isinstance(given, TensorInput):
            feed[name] = source.prefix_mask(name, given)
        else:
            feed[name] = source.value(given)
            pace += bool(pool)
    return feed


def smallest_size(signature: Signature, sizes: Sizes) -> int:
    """A number that is at most any open size but 0: an index or a length below it fits."""
    open_sizes = [sizes[name] for name in signature.open_dims() if sizes[name] > 0]
    return min([*open_sizes, LARGEST_INTEGER]) if open_sizes else 4


@dataclass(frozen=True)
class _Source:
    """Where the values of one input come from."""

    signature: Signature
    sizes: Sizes
    draw: Draw
    position: int
    pace: int
    """How many inputs before this one take values in turn."""
    pool: Sequence[Any]
    """What is taken in turn: lengths of a sequence, presence of an optional, values of a single
    element. Empty for an input of many elements."""
    bound: int

    def value(self, given: Input) -> Value:
        if isinstance(given, TensorInput):
            return self._full(given) if self.pool else self._drawn(given, 0)
        if isinstance(given, SequenceInput):
            return [self._drawn(given.element, index) for index in range(self._turn())]
        if not self._turn():
            return None
        inner = replace(self, pool=self.pool if isinstance(given.element, SequenceInput) else ())
        return inner.value(given.element)

    def prefix_mask(self, name: str, given: TensorInput) -> Array:
        """Rows of any lengths in any order, of which some draws have only full or empty ones."""
        shape, axis = self.signature.shape(given, self.sizes), self.draw.prefix_masks[name]
        if axis >= len(shape):
            raise Refused(f"`{name}` has no axis {axis} then")
        size, turn = shape[axis], self.draw.number % 4
        low, high = {1: (size, size), 3: (0, 0)}.get(turn, (0, size))
        rows = (*shape[:axis], 1, *shape[axis + 1 :])
        lengths = self._random(0).integers(low, high, rows, endpoint=True)
        steps = np.arange(size).reshape(-1, *[1] * (len(shape) - axis - 1))
        return np.asarray(steps < lengths).astype(given.dtype)

    def _full(self, given: TensorInput) -> Array:
        return np.full(self.signature.shape(given, self.sizes), self._turn(), given.dtype)

    def _drawn(self, given: TensorInput, index: int) -> Array:
        shape = self.signature.shape(given, self.sizes)
        return _GENERATORS[given.dtype.kind](self._random(index), shape, self).astype(given.dtype)

    def _random(self, index: int) -> np.random.Generator:
        return np.random.default_rng((self.draw.seed, self.draw.number, self.position, index))

    def _turn(self) -> Any:
        """Each element of the pool in turn. Inputs take their turns at different paces, so that
        two of them meet in all combinations.
        """
        return self.pool[(self.draw.number // 2 ** (self.pace % 3)) % len(self.pool)]


def _pool(
    given: Input, signature: Signature, sizes: Sizes, compared: Sequence[Any]
) -> Sequence[Any]:
    if isinstance(given, (SequenceInput, OptionalInput)):
        return SEQUENCE_LENGTHS
    single = np.prod(signature.shape(given, sizes), dtype=object) == 1
    return _single_values(given.dtype, compared) if single else ()


def _single_values(dtype: np.dtype[Any], compared: Sequence[Any]) -> list[Any]:
    """What a single element is taken from; empty for any value."""
    if dtype.kind == "b":
        return [True, False]
    if dtype.kind == "O":
        return list(dict.fromkeys([*compared, *WORDS]))
    near = [constant + step for constant in compared for step in (0, -1, 1)]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        pool = [value for value in (*near, *COUNTS) if limits.min <= value <= limits.max]
        return list(dict.fromkeys(pool))
    return near


def _floats(rng: np.random.Generator, shape: tuple[int, ...], source: _Source) -> Array:
    values: Array = rng.standard_normal(shape)
    turn = source.draw.number % 4
    if turn == 1:
        return np.abs(values)
    return -np.abs(values) if turn == 3 else values


def _integers(rng: np.random.Generator, shape: tuple[int, ...], source: _Source) -> Array:
    low = 0 if source.draw.integers == INDICES else 1
    values: Array = rng.integers(low, source.bound + low, shape)
    return values


def _booleans(rng: np.random.Generator, shape: tuple[int, ...], _: _Source) -> Array:
    values: Array = np.asarray(rng.integers(0, 2, shape) == 1)
    return values


def _strings(rng: np.random.Generator, shape: tuple[int, ...], _: _Source) -> Array:
    return np.array(WORDS, object)[rng.integers(0, len(WORDS), shape)]


_GENERATORS: dict[str, Callable[[np.random.Generator, tuple[int, ...], _Source], Array]] = {
    "f": _floats,
    "V": _floats,  # what numpy calls bfloat16
    "i": _integers,
    "u": _integers,
    "b": _booleans,
    "O": _strings,
}


# --- the constants that inputs are compared with ---

_COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_VIEWS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"})
_FEW = 8


def comparisons(model: onnx.ModelProto) -> dict[str, list[Any]]:
    """For each input of the main graph the constants it is compared with anywhere in the model.

    Names are taken to mean the same in all bodies: a wrong guess only adds a value to try.
    """
    constants = dict(_constants(model.graph))
    sources = {info.name: info.name for info in model.graph.input}
    found: dict[str, list[Any]] = {}
    for node in nodes(model.graph):
        if node.op_type in _VIEWS and node.input and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        if node.op_type not in _COMPARISONS or len(node.input) != 2:
            continue
        for value, other in (node.input, reversed(node.input)):
            if value in sources and other in constants:
                found.setdefault(sources[value], []).extend(constants[other])
    return found


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, list[Any]]]:
    """Small constants of a graph and its bodies."""
    for owner in owners(graph):
        if isinstance(owner, onnx.GraphProto):
            for tensor in owner.initializer:
                yield from _small(tensor.name, tensor)
    for node in nodes(graph):
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield from _small(node.output[0], attribute.t)
            elif attribute.name in ("value_int", "value_float"):
                yield node.output[0], [onnx.helper.get_attribute_value(attribute)]


def _small(name: str, tensor: onnx.TensorProto) -> Iterator[tuple[str, list[Any]]]:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if not external and np.prod(tensor.dims, dtype=object) <= _FEW:
        array = numpy_helper.to_array(tensor).ravel()
        yield name, [text.decode() if isinstance(text, bytes) else text for text in array.tolist()]
