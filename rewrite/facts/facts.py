"""What can be proven of a value: type, rank, symbolic shape, and the numbers it holds.

Facts are derived from the graph inputs, the initializers and the assertions of the user, never from
the shapes that a file declares for inner values: exporters declare false ones. They are computed on
demand, kept, and after an edit recomputed only as far as they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from .. import symbolic
from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor, bodies
from ..graph.value_numbering import Twins
from ..symbolic import Dim
from .assertions import Assertions

Value = int | symbolic.Expr | bool | None
"""An element of an integer or bool tensor; None for a bool that is not known."""

BOOL = onnx.TensorProto.BOOL
FLOAT = onnx.TensorProto.FLOAT
FLOATS = frozenset({FLOAT, onnx.TensorProto.DOUBLE})
INT32 = onnx.TensorProto.INT32
INT64 = onnx.TensorProto.INT64
INTEGERS = frozenset(
    {
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        INT32,
        INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
    }
)
MOST_VALUES = 256
"""Tensors with more elements carry no element-wise values: shape arithmetic never needs them."""


_LARGEST = 48
"""Atoms an expression may have before a fresh symbol takes its place."""


class Impossible(Exception):
    """Every run that reaches the node fails."""


@dataclass(frozen=True)
class Fact:
    """What is known of one value."""

    dtype: int = 0
    """onnx.TensorProto.DataType; 0 when not known. For a sequence, that of its elements."""
    shape: tuple[Dim, ...] | None = None
    """Symbolic shape; None when not even the rank is known. For a sequence, that of its elements,
    with `symbolic.VARYING` where they may differ."""
    ranks: frozenset[int] | None = None
    """The only possible ranks, where the shape is None."""
    values: tuple[Value, ...] | None = None
    """The elements in row-major order, for small integer and bool tensors of static shape."""
    kind: str = "tensor"
    """`tensor`, `sequence` or `other` (optional, map, sparse)."""
    length: Dim | None = None
    """Number of elements of a sequence."""

    @property
    def rank(self) -> int | None:
        """The number of axes, where it is known."""
        return None if self.shape is None else len(self.shape)

    def possible_ranks(self) -> frozenset[int] | None:
        """All numbers of axes that the value may have; None when nothing is known of them."""
        return self.ranks if self.shape is None else frozenset({len(self.shape)})

    def array(self) -> np.ndarray | None:
        """The values as an object array of the tensor's shape."""
        if self.values is None or self.shape is None:
            return None
        flat = np.empty(len(self.values), dtype=object)
        flat[:] = self.values
        return flat.reshape([int(d) for d in self.shape if isinstance(d, int)])

    def scalar(self) -> Value:
        """The only element; None when there is not exactly one or it is not known."""
        return self.values[0] if self.values is not None and len(self.values) == 1 else None


UNKNOWN = Fact()
NOTHING = Fact(kind="absent")
"""The fact of an omitted optional input."""


@dataclass(frozen=True)
class Inference:
    """Where facts come from: the operators' shape functions and what a file declares."""

    of_node: Callable[[Node, Facts], Sequence[Fact]]
    """The facts of a node's outputs; raises Impossible when the node cannot succeed."""
    of_source: Callable[[Facts, Tensor], Fact]
    """The fact of a graph input, an initializer, or a body input."""


class Facts:
    """Facts of all values of one model; `inference.facts_of` makes them."""

    def __init__(
        self,
        index: Index,
        opsets: Mapping[str, int],
        inference: Inference,
        assertions: Assertions,
    ) -> None:
        self.index = index
        self._inference = inference
        self.opsets = opsets
        self.opset = opsets.get("", 1)
        """Version of the standard operator set."""
        self.assertions = assertions
        """What the user asserts beyond the file."""
        self._facts: dict[Tensor, Fact] = {}
        self._since: list[Tensor] = []
        """Values whose facts were found since the last `mark`."""
        self._fresh: dict[tuple[Tensor, int, int | None, int | None], Dim] = {}
        self._origins: dict[Dim, tuple[Tensor, int]] = {}
        self._inputs_named = False
        self.twins = Twins(index)
        self._parent: Facts | None = None
        self._affected: frozenset[Tensor] = frozenset()
        self.failures: dict[Node, str] = {}
        """Nodes that fail in every run that reaches them, with the reason."""
        self.prefix_masks: dict[Tensor, int] = {}
        """What the user asserts to be prefix masks, what equals it and what has taken its place
        since, with the axes along which they are."""

    # --- questions ---

    def of(self, tensor: Tensor) -> Fact:
        """The fact of a value; computed with everything it depends on if need be."""
        if not tensor.name and self.index.producer(tensor) is None:
            return NOTHING
        known = self._lookup(tensor)
        return known if known is not None else self._derive(tensor)

    def shape(self, tensor: Tensor) -> tuple[Dim, ...] | None:
        """The symbolic shape; None when not even the rank is known."""
        return self.of(tensor).shape

    def known_shape(self, tensor: Tensor) -> tuple[Dim, ...]:
        """The symbolic shape of a value whose rank is known. Raises ValueError for others."""
        shape = self.of(tensor).shape
        if shape is None:
            raise ValueError(f"the rank of `{tensor.name}` is not known")
        return shape

    def rank(self, tensor: Tensor) -> int | None:
        """The number of axes; None when it is not known."""
        return self.of(tensor).rank

    def dtype(self, tensor: Tensor) -> int:
        """The onnx.TensorProto.DataType; 0 when not known."""
        return self.of(tensor).dtype

    def scalar(self, tensor: Tensor) -> Value:
        """The only element of an integer or bool tensor, where it is known."""
        return self.of(tensor).scalar()

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether all elements are the same in every run; reads no weights."""
        if isinstance(tensor, Constant):
            return not tensor.overridable
        node = self.index.producer(tensor)
        if node is not None and node.op == "Constant" and not node.domain:
            return True
        values = self.of(tensor).values
        return values is not None and all(isinstance(v, int) for v in values)

    def constant(self, tensor: Tensor) -> np.ndarray | None:
        """The elements, where all of them are the same numbers in every run."""
        if isinstance(tensor, Constant):
            return None if tensor.overridable else np.asarray(tensor.values)
        node = self.index.producer(tensor)
        if node is not None and node.op == "Constant" and not node.domain:
            return constant_value(node)
        fact = self.of(tensor)
        if fact.values is None or not all(isinstance(v, int) for v in fact.values):
            return None
        array = fact.array()
        assert array is not None
        return array.astype(onnx.helper.tensor_dtype_to_np_dtype(fact.dtype))

    def opset_of(self, domain: str) -> int:
        """Version of an operator set."""
        return self.opsets.get(domain, 1)

    def known(self, tensor: Tensor) -> Fact:
        """The fact already there for a value."""
        fact = self._lookup(tensor)
        return UNKNOWN if fact is None else fact

    def fresh(self, tensor: Tensor, axis: int, low: int | None = 0, high: int | None = None) -> Dim:
        """The unknown dim (or element) of a value: the same one for the same place and bounds."""
        key = (tensor, axis, low, high)
        if key not in self._fresh:
            if self._parent is not None and key in self._parent._fresh:
                return self._parent._fresh[key]
            home = self.index.home(tensor)
            scope = None if home is self.index.root else home
            name = tensor.name or "value"
            name += f".{axis}" if axis >= 0 else f"[{-1 - axis}]" if axis < -1 else ""
            self._fresh[key] = symbolic.fresh(name, low, high, scope)
            if axis >= 0:
                self._origins[self._fresh[key]] = (tensor, axis)
        return self._fresh[key]

    def origin(self, dim: Dim) -> tuple[Tensor, int] | None:
        """A value and the axis of it whose size the dim is; None where none is known."""
        if not self._inputs_named:
            self._inputs_named = True
            for tensor in self.index.root.inputs:
                for axis, size in enumerate(self.shape(tensor) or ()):
                    self._origins.setdefault(size, (tensor, axis))
        found = self._origins.get(dim)
        if found is None or self.index.home(found[0]) is None:
            return None
        shape = self.shape(found[0])
        fits = shape is not None and found[1] < len(shape) and shape[found[1]] == dim
        return found if fits else None

    def escapes(self, dim: Dim, loop_body: Graph) -> bool:
        """Whether the dim names something that may differ between iterations of the body."""
        return any(
            isinstance(s.scope, Graph) and self.index.encloses(loop_body, s.scope)
            for s in symbolic.symbols(dim)
        )

    # --- derivation ---

    def _lookup(self, tensor: Tensor) -> Fact | None:
        if tensor in self._facts:
            return self._facts[tensor]
        if self._parent is not None and tensor not in self._affected:
            return self._parent.of(tensor)
        return None

    def _derive(self, wanted: Tensor) -> Fact:
        """Computes without recursion along chains: a model may be 100,000 nodes deep."""
        stack = [wanted]
        while stack:
            tensor = stack[-1]
            if self._lookup(tensor) is not None:
                stack.pop()
                continue
            node = self.index.producer(tensor)
            if node is None:
                self.assume(tensor, self._inference.of_source(self, tensor))
                continue
            missing = [t for t in self._dependencies(node) if self._lookup(t) is None]
            if missing:
                stack.extend(missing)
            else:
                self._infer(node)
        return self._facts[wanted]

    def _dependencies(self, node: Node) -> Iterator[Tensor]:
        yield from (t for t in node.inputs if t.name)
        if any(self._lookup(t) is None for body in bodies(node) for t in body.outputs):
            yield from self.index.captures(node)

    def _infer(self, node: Node) -> None:
        try:
            results = self._inference.of_node(node, self)
            self.failures.pop(node, None)
        except Impossible as reason:
            self.failures[node] = str(reason)
            results = [UNKNOWN] * len(node.outputs)
        for position, tensor in enumerate(node.outputs):
            fact = results[position] if position < len(results) else UNKNOWN
            self._facts[tensor] = self._simplified(tensor, fact)
        self._since += node.outputs

    def _simplified(self, tensor: Tensor, fact: Fact) -> Fact:
        """Replaces expressions that have grown large: arithmetic on them would never end. A shape
        of which only the rank is known gets dims of its own.
        """
        if fact.shape is None and fact.ranks is not None and len(fact.ranks) == 1:
            (rank,) = fact.ranks
            dims = tuple(self.fresh(tensor, axis) for axis in range(rank))
            fact = replace(fact, shape=dims, ranks=None)
        if fact.values is not None and any(
            isinstance(v, symbolic.Expr) and v.size > _LARGEST for v in fact.values
        ):
            fact = replace(fact, values=None)
        if fact.shape is not None and any(symbolic.size(d) > _LARGEST for d in fact.shape):
            shape = tuple(
                d if symbolic.size(d) <= _LARGEST else self.fresh(tensor, axis, *_known_bounds(d))
                for axis, d in enumerate(fact.shape)
            )
            fact = replace(fact, shape=shape, values=None)
        return fact

    def failure(self, node: Node) -> str | None:
        """Why every run that reaches the node fails; None when it may succeed."""
        for tensor in node.outputs:
            self.of(tensor)
        return self.failures.get(node)

    def assume(self, tensor: Tensor, fact: Fact) -> None:
        """Sets the fact of a value, such as a body input while a loop's fixpoint is sought."""
        self._facts[tensor] = fact
        self._since.append(tensor)

    def forget(self, graph: Graph) -> None:
        """Drops what was derived inside a body."""
        for node in graph.nodes:
            for tensor in node.outputs:
                self._facts.pop(tensor, None)
            for body in bodies(node):
                for tensor in body.inputs:
                    self._facts.pop(tensor, None)
                self.forget(body)

    # --- change ---

    def mark(self) -> None:
        """Begins a patch that may be undone."""
        self._since.clear()

    def retract(self) -> None:
        """Drops what was found since the last `mark`: it speaks of a graph that was undone."""
        for tensor in self._since:
            self._facts.pop(tensor, None)
            node = self.index.producer(tensor)
            if node is not None:
                self.failures.pop(node, None)
        self._since.clear()

    def derived(self, tensors: Iterable[Tensor]) -> dict[Tensor, Fact]:
        """The facts already there for these values."""
        return {t: self._facts[t] for t in tensors if t in self._facts}

    def drop(self, tensors: Iterable[Tensor]) -> dict[Tensor, Fact]:
        """Forgets the facts of values; returns those that were there."""
        return {t: self._facts.pop(t) for t in tensors if t in self._facts}

    # --- what if ---

    def suppose(self, facts: Mapping[Tensor, Fact], affected: Iterable[Tensor]) -> Facts:
        """A view in which some values have other facts, and `affected` are derived anew."""
        view = Facts(self.index, self.opsets, self._inference, self.assertions)
        view._parent = self
        view._affected = frozenset(affected) | frozenset(facts)
        view._facts = dict(facts)
        view.prefix_masks = self.prefix_masks
        return view

    def transfer(self, replaced: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Carries assertions about values over to the values that replaced them."""
        if not self.prefix_masks:
            return
        for old, new in replaced:
            if old in self.prefix_masks and not self.index.use_count(old):
                self.prefix_masks.setdefault(new, self.prefix_masks[old])


def named(graph: Graph, names: Iterable[str]) -> dict[str, Tensor]:
    """Those of a graph's inputs and of what its nodes compute that bear one of these names."""
    wanted = set(names)
    if not wanted:
        return {}
    values = (*graph.inputs, *(t for node in graph.nodes for t in node.outputs))
    return {tensor.name: tensor for tensor in values if tensor.name in wanted}


def _known_bounds(dim: Dim) -> tuple[int | None, int | None]:
    low, high = symbolic.bounds(dim)
    return (0 if low is None else max(low, 0)), high


def constant_value(node: Node) -> np.ndarray | None:
    """The array a Constant node holds (ONNX operator spec, Constant); None for sparse ones."""
    for name, value in node.attrs.items():
        if name == "value" and isinstance(value, Constant):
            return np.asarray(value.values)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if name in ("value_string", "value_strings"):
            return np.asarray(value, dtype=object)
    return None


def join(left: Fact, right: Fact, fresh: Mapping[int, Dim]) -> Fact:
    """What holds on both sides of a join. `fresh` gives the dim for an axis that differs."""
    if left.kind != right.kind:
        return Fact(kind="other")
    dtype = left.dtype if left.dtype == right.dtype else 0
    length = left.length if left.length == right.length else None
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        a, b = left.possible_ranks(), right.possible_ranks()
        ranks = None if a is None or b is None else a | b
        return Fact(dtype, None, ranks, None, left.kind, length)
    differs = dict.fromkeys(fresh, symbolic.VARYING) if left.kind == "sequence" else fresh
    shape = tuple(
        a if a == b else differs[axis] for axis, (a, b) in enumerate(zip(left.shape, right.shape))
    )
    values = _join_values(left, right) if left.shape == right.shape else None
    return Fact(dtype, shape, None, values, left.kind, length)


def _join_values(left: Fact, right: Fact) -> tuple[Value, ...] | None:
    if left.values is None or right.values is None or left.dtype != right.dtype:
        return None
    if left.dtype == BOOL:
        return tuple(a if a is b else None for a, b in zip(left.values, right.values))
    if left.values == right.values:
        return left.values
    return None
