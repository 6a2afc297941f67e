"""The facts of all values of a model: types, symbolic shapes, and the elements of small tensors.

Facts are derived from the graph inputs, the initializers and the user's assertions, never from the
shapes that a file declares for inner values: exporters declare wrong ones. They are derived on
demand and cached; after an edit, `propagation` updates them only as far as they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from .. import symbolic
from ..errors import LoopliftError, ModelError
from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor, bodies, constant_value
from ..graph.labels import node_label
from ..graph.value_numbering import ValueNumbering
from ..symbolic import Dim
from .assertions import Assertions
from .fact import ABSENT, MOST_ATOMS, UNKNOWN, AlwaysFails, Element, Fact


@dataclass(frozen=True)
class Inference:
    """Where facts come from: the operators' shape functions, and what a file declares."""

    infer_node: Callable[[Node, Facts], Sequence[Fact]]
    """Returns the facts of a node's outputs; raises AlwaysFails when the node cannot succeed."""
    infer_failed: Callable[[Node, Facts], Sequence[Fact]]
    """Returns the element types of the outputs of a node that cannot succeed."""
    infer_input: Callable[[Facts, Tensor], Fact]
    """Returns the fact of a graph input, an initializer or a body input."""


class Facts:
    """The facts of all values of one model; `inference.facts_of` creates them."""

    def __init__(
        self,
        index: Index,
        opsets: Mapping[str, int],
        inference: Inference,
        assertions: Assertions,
    ) -> None:
        self.index = index
        """Def-use chains of the model."""
        self._inference = inference
        self.opsets = opsets
        """The version of each operator set, by domain."""
        self.opset: int = opsets.get("", 1)
        """The version of the standard operator set."""
        self.assertions = assertions
        """What the user asserts beyond the file."""
        self._facts: dict[Tensor, Fact] = {}
        self._derived_in_patch: list[Tensor] = []
        """The values whose facts were derived since `begin_patch`."""
        self._fresh: dict[tuple[Tensor, int, int | None, int | None], Dim] = {}
        self._origins: dict[Dim, tuple[Tensor, int]] = {}
        self._has_input_origins = False
        self.value_numbering = ValueNumbering(index)
        """Nodes and constants that equal each other."""
        self._parent: Facts | None = None
        self._affected: frozenset[Tensor] = frozenset()
        self.failures: dict[Node, str] = {}
        """The nodes that fail in every run that reaches them, with the reason."""
        self.prefix_masks: dict[Tensor, int] = {}
        """The values asserted to be prefix masks, equal values, and values that replaced them, each
        with its time axis."""

    # --- queries ---

    def of(self, tensor: Tensor) -> Fact:
        """The fact of a value; derives it, and what it depends on, where necessary."""
        if not tensor.name and self.index.producer(tensor) is None:
            return ABSENT
        known = self._lookup(tensor)
        return known if known is not None else self._derive(tensor)

    def shape(self, tensor: Tensor) -> tuple[Dim, ...] | None:
        """The symbolic shape; None when the rank is not known."""
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

    def scalar(self, tensor: Tensor) -> Element:
        """The only element of an integer or bool tensor, where it is known."""
        return self.of(tensor).scalar()

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether all elements are the same in every run; does not decode weights."""
        if isinstance(tensor, Constant):
            return not tensor.overridable
        node = self.index.producer(tensor)
        if node is not None and node.op == "Constant" and not node.domain:
            return True
        return _is_same_in_every_run(self.of(tensor))

    def constant(self, tensor: Tensor) -> np.ndarray | None:
        """The elements, if all of them are known numbers that are the same in every run."""
        if isinstance(tensor, Constant):
            return None if tensor.overridable else np.asarray(tensor.values)
        node = self.index.producer(tensor)
        if node is not None and node.op == "Constant" and not node.domain:
            return constant_value(node)
        fact = self.of(tensor)
        array = fact.array() if _is_same_in_every_run(fact) else None
        if array is None:
            return None
        return array.astype(onnx.helper.tensor_dtype_to_np_dtype(fact.dtype))

    def opset_of(self, domain: str) -> int:
        """The version of an operator set."""
        return self.opsets.get(domain, 1)

    def cached(self, tensor: Tensor) -> Fact:
        """The fact of a value if it was derived before; otherwise UNKNOWN."""
        fact = self._lookup(tensor)
        return UNKNOWN if fact is None else fact

    def fresh(self, tensor: Tensor, axis: int, low: int | None = 0, high: int | None = None) -> Dim:
        """The symbol for an unknown dim of a value; the same symbol for the same arguments.

        `axis` is the axis of the dim, or -1 - i for element i of the value.
        """
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
        """A value and one of its axes whose size is the dim; None where none is known."""
        if not self._has_input_origins:
            self._has_input_origins = True
            for tensor in self.index.root.inputs:
                for axis, size in enumerate(self.shape(tensor) or ()):
                    self._origins.setdefault(size, (tensor, axis))
        found = self._origins.get(dim)
        if found is None or self.index.home(found[0]) is None:
            return None
        shape = self.shape(found[0])
        fits = shape is not None and found[1] < len(shape) and shape[found[1]] == dim
        return found if fits else None

    def varies_in(self, dim: Dim, body: Graph) -> bool:
        """Whether the dim may differ between iterations of a body."""
        return any(
            isinstance(s.scope, Graph) and self.index.encloses(body, s.scope)
            for s in symbolic.symbols(dim)
        )

    def failure(self, node: Node) -> str | None:
        """Why every run that reaches the node fails; None when it may succeed."""
        for tensor in node.outputs:
            self.of(tensor)
        return self.failures.get(node)

    # --- derivation ---

    def _lookup(self, tensor: Tensor) -> Fact | None:
        if tensor in self._facts:
            return self._facts[tensor]
        if self._parent is not None and tensor not in self._affected:
            return self._parent.of(tensor)
        return None

    def _derive(self, wanted: Tensor) -> Fact:
        """Derives a fact with an explicit stack: a model may be 100,000 nodes deep."""
        stack = [wanted]
        while stack:
            tensor = stack[-1]
            if self._lookup(tensor) is not None:
                stack.pop()
                continue
            node = self.index.producer(tensor)
            if node is None:
                self.set_fact(tensor, self._inference.infer_input(self, tensor))
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
            results = self._inference.infer_node(node, self)
            self.failures.pop(node, None)
        except AlwaysFails as reason:
            self.failures[node] = str(reason)
            results = self._inference.infer_failed(node, self)
        except LoopliftError:
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            # Such as a list of strides that is too short: onnxruntime refuses to load the model.
            raise ModelError(
                f"The attributes or inputs of {node.op} do not fit: {error}",
                where=node_label(node),
                remedy="Correct the model; if it is valid, please report it",
            ) from error
        for position, tensor in enumerate(node.outputs):
            fact = results[position] if position < len(results) else UNKNOWN
            self._facts[tensor] = self._simplified(tensor, fact)
        self._derived_in_patch += node.outputs

    def _simplified(self, tensor: Tensor, fact: Fact) -> Fact:
        """Replaces large expressions by fresh symbols, because arithmetic on them takes too long.

        A value with a known rank but no shape gets a shape of fresh dims.
        """
        if fact.shape is None and fact.ranks is not None and len(fact.ranks) == 1:
            (rank,) = fact.ranks
            dims = tuple(self.fresh(tensor, axis) for axis in range(rank))
            fact = replace(fact, shape=dims, ranks=None)
        if fact.values is not None and any(
            isinstance(v, symbolic.Expr) and v.size > MOST_ATOMS for v in fact.values
        ):
            fact = replace(fact, values=None)
        if fact.shape is not None and any(symbolic.size(d) > MOST_ATOMS for d in fact.shape):
            shape = tuple(
                d if symbolic.size(d) <= MOST_ATOMS else self.fresh(tensor, axis, *_size_bounds(d))
                for axis, d in enumerate(fact.shape)
            )
            fact = replace(fact, shape=shape, values=None)
        return fact

    # --- updates ---

    def set_fact(self, tensor: Tensor, fact: Fact) -> None:
        """Sets the fact of a value, such as a body input during a fixpoint iteration."""
        self._facts[tensor] = fact
        self._derived_in_patch.append(tensor)

    def cached_facts(self, tensors: Iterable[Tensor]) -> dict[Tensor, Fact]:
        """The facts of these values, as far as they were derived before."""
        return {t: self._facts[t] for t in tensors if t in self._facts}

    def drop(self, tensors: Iterable[Tensor]) -> dict[Tensor, Fact]:
        """Drops the facts of values and returns them."""
        return {t: self._facts.pop(t) for t in tensors if t in self._facts}

    def drop_body(self, body: Graph) -> None:
        """Drops the facts of everything that a body computes, and of the bodies inside it."""
        for node in body.nodes:
            for tensor in node.outputs:
                self._facts.pop(tensor, None)
            for inner in bodies(node):
                for tensor in inner.inputs:
                    self._facts.pop(tensor, None)
                self.drop_body(inner)

    def begin_patch(self) -> None:
        """Starts to record which facts are derived, for `discard_patch`."""
        self._derived_in_patch.clear()

    def discard_patch(self) -> None:
        """Drops the facts derived since `begin_patch`: they describe a graph that was undone."""
        for tensor in self._derived_in_patch:
            self._facts.pop(tensor, None)
            node = self.index.producer(tensor)
            if node is not None:
                self.failures.pop(node, None)
        self._derived_in_patch.clear()

    def transfer_prefix_masks(self, replaced: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Transfers assertions about values to the values that replaced them."""
        if not self.prefix_masks:
            return
        for old, new in replaced:
            if old in self.prefix_masks and not self.index.use_count(old):
                self.prefix_masks.setdefault(new, self.prefix_masks[old])

    # --- hypotheses ---

    def assuming(self, facts: Mapping[Tensor, Fact], affected: Iterable[Tensor]) -> Facts:
        """A view in which some values have other facts; derives `affected` again from them."""
        view = Facts(self.index, self.opsets, self._inference, self.assertions)
        view._parent = self
        view._affected = frozenset(affected) | frozenset(facts)
        view._facts = dict(facts)
        view.prefix_masks = self.prefix_masks
        return view


def named(graph: Graph, names: Iterable[str]) -> dict[str, Tensor]:
    """The inputs of a graph and the results of its nodes that have one of these names, by name."""
    wanted = set(names)
    if not wanted:
        return {}
    values = (*graph.inputs, *(t for node in graph.nodes for t in node.outputs))
    return {tensor.name: tensor for tensor in values if tensor.name in wanted}


def _size_bounds(dim: Dim) -> tuple[int | None, int | None]:
    """The bounds of a dim, which is a size and thus never negative."""
    low, high = symbolic.bounds(dim)
    return (0 if low is None else max(low, 0)), high


def _is_same_in_every_run(fact: Fact) -> bool:
    """Whether shape and elements are numbers; a tensor without elements may have open sizes."""
    if fact.values is None:
        return False
    return all(isinstance(v, int) for v in (*fact.values, *(fact.shape or ())))
