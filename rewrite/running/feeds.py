"""Generates values for the inputs of a model, from a seed and so that most models accept them.

Integers are small, because most of them are lengths, indices or counts. A scalar also takes the
constants that the model compares it with and their neighbours, to reach both branches of an If.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..storage.protos import containers, nodes
from .runtime import Array, ExecutionError, Feed, RuntimeValue
from .signature import DimSizes, Input, InputSignature, OptionalInput, SequenceInput, TensorInput

INDICES, LENGTHS, ZEROS = "indices", "lengths", "zeros"
INTEGER_STYLES = ((INDICES, LENGTHS, ZEROS), (LENGTHS, INDICES, ZEROS))
"""The ranges of random integers, in the orders in which they are tried: 0 to the smallest size - 1,
1 to the smallest size, and 0 only, which is an index into anything that has an element."""

LARGEST_INTEGER = 8
SEQUENCE_LENGTHS = (2, 1, 3, 0)
WORDS = ("a", "b", "word", "")
COUNTS = (3, 1, 0, 2)

Scalars = Mapping[str, Sequence[Any]]
"""For each input the constants that the model compares it with."""


@dataclass(frozen=True)
class Sampling:
    """The settings of one feed; equal settings give equal values in every process."""

    number: int
    seed: int = 0
    integers: str = INDICES
    pinned: Mapping[str, Any] = field(default_factory=dict)
    """Fixed values for inputs of one element."""
    prefix_masks: Mapping[str, int] = field(default_factory=dict)
    """The inputs that are prefix masks, with their time axes."""


def make_feed(
    signature: InputSignature, sizes: DimSizes, sampling: Sampling, compared: Scalars
) -> Feed:
    """Values for all inputs of a signature, given the sizes of its open dimensions.

    `compared` has the constants that inputs are compared with. Raises `ExecutionError` for a prefix
    mask whose rank is too small for its asserted axis.
    """
    bound = smallest_size(signature, sizes)
    feed: Feed = {}
    pace = 0
    for position, (name, given) in enumerate(signature.inputs.items()):
        pool = tuple(_pool(given, signature, sizes, compared.get(name, ())))
        if pool and name in sampling.pinned:
            pool = (sampling.pinned[name],)
        generator = _Generator(signature, sizes, sampling, position, pace, pool, bound)
        if name in sampling.prefix_masks and isinstance(given, TensorInput):
            feed[name] = generator.prefix_mask(name, given)
        else:
            feed[name] = generator.value(given)
            pace += bool(pool)
    return feed


def smallest_size(signature: InputSignature, sizes: DimSizes) -> int:
    """The smallest open size other than 0, at most LARGEST_INTEGER: a bound for valid indices."""
    open_sizes = [sizes[name] for name in signature.open_dims() if sizes[name] > 0]
    return min([*open_sizes, LARGEST_INTEGER]) if open_sizes else 4


@dataclass(frozen=True)
class _Generator:
    """Generates the values of one input."""

    signature: InputSignature
    sizes: DimSizes
    sampling: Sampling
    position: int
    pace: int
    """The number of earlier inputs that cycle through a pool."""
    pool: Sequence[Any]
    """What successive feeds cycle through: lengths of a sequence, presence of an optional, values
    of a single element. Empty for an input of many elements."""
    bound: int
    """The bound for random integers."""

    def value(self, given: Input) -> RuntimeValue:
        """A value of this type."""
        if isinstance(given, TensorInput):
            return self._full(given) if self.pool else self._random_tensor(given, 0)
        if isinstance(given, SequenceInput):
            return [self._random_tensor(given.element, i) for i in range(self._from_pool())]
        if not self._from_pool():
            return None
        inner = replace(self, pool=self.pool if isinstance(given.element, SequenceInput) else ())
        return inner.value(given.element)

    def prefix_mask(self, name: str, given: TensorInput) -> Array:
        """A prefix mask with random lengths; in some feeds only full or only empty rows."""
        shape, axis = self.signature.shape(given, self.sizes), self.sampling.prefix_masks[name]
        if axis >= len(shape):
            raise ExecutionError(f"`{name}` has no axis {axis} at these sizes")
        size, turn = shape[axis], self.sampling.number % 4
        low, high = {1: (size, size), 3: (0, 0)}.get(turn, (0, size))
        rows = (*shape[:axis], 1, *shape[axis + 1 :])
        lengths = self._random(0).integers(low, high, rows, endpoint=True)
        positions = np.arange(size).reshape(-1, *[1] * (len(shape) - axis - 1))
        return np.asarray(positions < lengths).astype(given.dtype)

    def _full(self, given: TensorInput) -> Array:
        return np.full(self.signature.shape(given, self.sizes), self._from_pool(), given.dtype)

    def _random_tensor(self, given: TensorInput, index: int) -> Array:
        shape = self.signature.shape(given, self.sizes)
        try:
            values = _GENERATORS[given.dtype.kind](self._random(index), shape, self)
        except (ValueError, MemoryError):  # numpy also refuses (0, 2**62)
            raise ExecutionError(f"an input cannot have the shape {list(shape)}") from None
        return values.astype(given.dtype)

    def _random(self, index: int) -> np.random.Generator:
        return np.random.default_rng(
            (self.sampling.seed, self.sampling.number, self.position, index)
        )

    def _from_pool(self) -> Any:
        """The element of the pool for this feed.

        Inputs cycle at different paces, so that two of them take all combinations.
        """
        return self.pool[(self.sampling.number // 2 ** (self.pace % 3)) % len(self.pool)]


def _pool(
    given: Input, signature: InputSignature, sizes: DimSizes, compared: Sequence[Any]
) -> Sequence[Any]:
    if isinstance(given, (SequenceInput, OptionalInput)):
        return SEQUENCE_LENGTHS
    single = np.prod(signature.shape(given, sizes), dtype=object) == 1
    return _single_values(given.dtype, compared) if single else ()


def _single_values(dtype: np.dtype[Any], compared: Sequence[Any]) -> list[Any]:
    """The pool for a single element; empty if any value will do."""
    if dtype.kind == "b":
        return [True, False]
    if dtype.kind == "O":
        return list(dict.fromkeys([*compared, *WORDS]))
    near = [constant + offset for constant in compared for offset in (0, -1, 1)]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        pool = [value for value in (*near, *COUNTS) if limits.min <= value <= limits.max]
        return list(dict.fromkeys(pool))
    return near


def _floats(rng: np.random.Generator, shape: tuple[int, ...], generator: _Generator) -> Array:
    values: Array = rng.standard_normal(shape)
    turn = generator.sampling.number % 4
    if turn == 1:
        return np.abs(values)
    return -np.abs(values) if turn == 3 else values


def _integers(rng: np.random.Generator, shape: tuple[int, ...], generator: _Generator) -> Array:
    if generator.sampling.integers == ZEROS:
        return np.zeros(shape, np.int64)
    low = 0 if generator.sampling.integers == INDICES else 1
    values: Array = rng.integers(low, generator.bound + low, shape)
    return values


def _booleans(rng: np.random.Generator, shape: tuple[int, ...], _: _Generator) -> Array:
    values: Array = np.asarray(rng.integers(0, 2, shape) == 1)
    return values


def _strings(rng: np.random.Generator, shape: tuple[int, ...], _: _Generator) -> Array:
    return np.array(WORDS, object)[rng.integers(0, len(WORDS), shape)]


_GENERATORS: dict[str, Callable[[np.random.Generator, tuple[int, ...], _Generator], Array]] = {
    "f": _floats,
    "V": _floats,  # numpy's kind for bfloat16
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
    """For each input of the main graph the constants that it is compared with in the model.

    Assumes that a name means the same value in all bodies; a wrong guess only adds a value to try.
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
    """The small constants of a graph and its bodies, by name."""
    for owner in containers(graph):
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
