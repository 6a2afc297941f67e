"""Where a value comes from, and which assertions would decide it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.engine import Engine
from ...rewrite.engine.miss import describe
from ...rewrite.engine.reasons import Reason
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.prefix_masks import MOST_AXES
from ...rewrite.facts.reads import reversed_axis
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies
from ...rewrite.symbolic import Dim, Expr, Symbol, file_name, symbols
from ...rules.recurrence.cell_diagnostics import ONE_NAME
from ...rules.recurrence.length_masks import UNKNOWN_MASK, elementwise_origins
from ..command_options import mask_option
from ..fact_text import is_named, value_text

MOST_VALUES = 10
"""The values listed for one derivation."""
_SMALL = 8
"""The most elements of an input that a user can give a value."""
_MOST_TRIED_SIZE = 4096
"""The sizes among which the least one at which a loop runs is searched."""
_SIZES = frozenset({"Shape", "Size"})
"""Operators that read no elements."""
_COMPARISONS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"}
)
"""Operators whose constant operands are limits of the other operand."""


@dataclass(frozen=True)
class Remedy:
    """Something that the user can assert: the value or shape of an input, a dim, or a mask."""

    option: str
    """The option of the command line."""
    name: str
    axis: int | None = None
    """The time axis of a mask."""

    def __str__(self) -> str:
        if self.option == "--prefix-mask":
            return mask_option(self.name, self.axis)
        return f"{self.option} {self.name}=…"


@dataclass(frozen=True)
class EqualDims:
    """The remedy that gives two named dims of the file one name."""

    one: str
    other: str


class Derivation:
    """The values that a value is computed from, nearest first, without constants."""

    def __init__(self, facts: Facts, tensor: Tensor) -> None:
        self._facts = facts
        self._index = facts.index
        self.values: list[Tensor] = []
        """The first values; at most MOST_VALUES."""
        self.remedies: list[Remedy] = []
        """What the user can assert that decides the value, or a part of it."""
        self.limits: list[float] = []
        """The numbers that these parts are compared with."""
        self.unassertable: list[str] = []
        """What the value depends on that no option can assert."""
        for value in self._sources(tensor, lambda _: False):
            self.values.append(value)
            if len(self.values) == MOST_VALUES:
                break
        if facts.dtype(tensor) in FLOAT_OR_DOUBLE:  # facts know only the sizes of these
            self._add_sizes(tensor)
        else:
            deque(self._sources(tensor, self._adds_advice), maxlen=0)
        self.remedies = list(dict.fromkeys(self.remedies))
        self.unassertable = list(dict.fromkeys(self.unassertable))

    def _sources(self, tensor: Tensor, stops: Callable[[Tensor], bool]) -> Iterator[Tensor]:
        """A value and those it is computed from, nearest first; ends at a value that `stops`."""
        waiting, seen = deque([tensor]), {tensor}
        while waiting:
            value = waiting.popleft()
            yield value
            producer = self._index.producer(value)
            if producer is not None and producer.op in _COMPARISONS:
                self.limits += self._numbers_in(producer)
            node = None if stops(value) else producer
            for operand in () if node is None else self._operands(node):
                if operand not in seen and not self._facts.is_constant(operand):
                    seen.add(operand)
                    waiting.append(operand)

    def _numbers_in(self, node: Node) -> Iterator[float]:
        """The constant operands of a node that are single numbers."""
        for operand in node.inputs:
            constant = self._facts.constant(operand) if self._facts.is_constant(operand) else None
            if constant is not None and constant.size == 1 and np.isreal(constant).all():
                yield constant.item()

    def _operands(self, node: Node) -> Iterator[Tensor]:
        yield from (t for t in node.inputs if t.name)
        if bodies(node):
            yield from self._index.captures(node)

    # --- advice ---

    def _adds_advice(self, tensor: Tensor) -> bool:
        """Adds the advice for a value; False if that depends on what it is computed from."""
        if self._facts.is_constant(tensor):
            return True
        node = self._index.producer(tensor)
        numbers = [n for n in self._facts.of(tensor).values or () if not isinstance(n, int)]
        sizes = [_dims_in(n) if isinstance(n, Expr) else [] for n in numbers]
        if numbers and all(sizes):
            self.remedies += [remedy for each in sizes for remedy in each]
        elif node is None:
            self._add_elements(tensor)
        elif node.op in _SIZES and not node.domain:
            self._add_sizes(node.inputs[0])
        else:
            return False
        return True

    def _add_elements(self, tensor: Tensor) -> None:
        """Adds the advice for the elements of a value that no node computes."""
        home = self._index.home(tensor)
        owner = None if home is None else self._index.owner(home)
        if owner is not None:
            self.unassertable.append(
                f"the {role(owner, home, tensor)} `{tensor.name}` of {_label(owner)}"
            )
            return
        shape = self._facts.shape(tensor)
        sizes = [dim for dim in shape or () if isinstance(dim, int)]
        if shape is not None and len(sizes) == len(shape) and math.prod(sizes) <= _SMALL:
            self.remedies.append(Remedy("--input", tensor.name))
        else:
            self.unassertable.append(f"the elements of `{tensor.name}`")

    def _add_sizes(self, tensor: Tensor) -> None:
        """Adds the advice for the sizes of a value."""
        shape = self._facts.shape(tensor)
        dims = [remedy for dim in shape or () for remedy in _dims_in(dim)]
        self.remedies += dims
        if shape is not None and all(map(is_named, shape)):
            return
        inputs = list(self._inputs_without_names(tensor))
        self.remedies += [Remedy("--shape", name) for name in inputs]
        if not inputs and not dims:
            self.unassertable.append(f"the shape of `{tensor.name}`")

    def _inputs_without_names(self, tensor: Tensor) -> Iterator[str]:
        """The inputs of the model that a value is computed from and whose sizes have no names."""
        for value in self._sources(tensor, lambda _: False):
            if self._index.home(value) is self._index.root and self._index.producer(value) is None:
                shape = self._facts.shape(value)
                if shape is None or not all(map(is_named, shape)):
                    yield value.name

    # --- for a reader ---

    def lines(self) -> list[str]:
        """One line for each value: how it is computed, and its facts."""
        return [self._line(value) for value in self.values]

    def _line(self, tensor: Tensor) -> str:
        node = self._index.producer(tensor)
        computed = self._source_text(tensor) if node is None else self._expression(node)
        return f"`{tensor.name}` = {computed}: {value_text(self._facts.of(tensor))}"

    def _source_text(self, tensor: Tensor) -> str:
        if isinstance(tensor, Constant):
            return "default of an input" if tensor.overridable else "constant"
        home = self._index.home(tensor)
        owner = None if home is None else self._index.owner(home)
        if owner is None:
            return "input of the model"
        return f"{role(owner, home, tensor)} of {_label(owner)}"

    def _expression(self, node: Node) -> str:
        return f"{node.op}({', '.join(self._operand(t) for t in node.inputs if t.name)})"

    def _operand(self, tensor: Tensor) -> str:
        constant = self._facts.constant(tensor) if self._facts.is_constant(tensor) else None
        if constant is not None and constant.size == 1:
            return str(constant.reshape(-1)[0])
        return f"`{tensor.name}`"


def _dims_in(dim: Dim) -> list[Remedy]:
    """The named dims in a size; none if it has a symbol without a name."""
    parts = sorted(symbols(dim), key=lambda s: s.name)
    return [Remedy("--dim", s.name) for s in parts] if is_named(dim) else []


def dim_remedies(values: tuple[object, ...]) -> list[Remedy]:
    """The named dims in the expressions among these values."""
    return [remedy for value in values if isinstance(value, Expr) for remedy in _dims_in(value)]


def sizes_that_run(facts: Facts, node: Node) -> tuple[Remedy, list[int]] | None:
    """The only dim in the trip count of a loop, with sizes to try at which the loop runs.

    They are the least one and the next powers of two, because the last windows may be cut short.
    None for other nodes, and where a size of 1 is enough.
    """
    loop = counted_loop(facts, node) if node.op == "Loop" and not node.domain else None
    if loop is None or loop.count is None or loop.runs_at_least_once or not is_named(loop.count):
        return None
    found = symbols(loop.count)
    if len(found) != 1:
        return None
    (symbol,) = found
    least = _least_size(loop.count, symbol)
    if least is None or least == 1:
        return None
    power = 1 << (least - 1).bit_length()
    return Remedy("--dim", symbol.name), list(dict.fromkeys((least, power, 2 * power)))


def maybe_empty(facts: Facts, node: Node) -> list[str]:
    """For a loop that may not run: the dims of the inputs of the model that may be 0.

    A Reshape to computed sizes, for example, has a shape that is known only if none of them is 0,
    and the reason names the shape, not the sizes.
    """
    loop = counted_loop(facts, node) if node.op == "Loop" and not node.domain else None
    if loop is None or loop.runs_at_least_once:
        return []
    dims = [dim for t in facts.index.root.inputs for dim in facts.shape(t) or ()]
    names = (file_name(dim) for dim in dims if not symbolic.positive(dim))
    return list(dict.fromkeys(name for name in names if name is not None))


def _least_size(count: Dim, symbol: Symbol) -> int | None:
    """The least size at which a trip count is positive; None if none is found."""
    for size in range(1, _MOST_TRIED_SIZE + 1):
        trips = symbolic.substitute(count, {symbol: size})
        if not isinstance(trips, int):
            return None
        if trips > 0:
            return size
    return None


def equal_dims(reason: Reason) -> list[EqualDims]:
    """The remedy for a reason that says that two dims of the file may be equal."""
    if ONE_NAME not in reason.template:
        return []
    names = [file_name(value) for value in reason.values if isinstance(value, Expr)]
    one, other = (name for name in names if name is not None)
    return [EqualDims(one, other)]


def _label(owner: Node) -> str:
    return describe(owner) if owner.name else f"{owner.op} `{owner.outputs[0].name}`"


def role(owner: Node, body: Graph | None, tensor: Tensor) -> str:
    """The role of an input of a body (ONNX operator specification: Loop, Scan)."""
    slot = next((k for k, t in enumerate(body.inputs) if t is tensor), 0) if body else 0
    if owner.op == "Loop":
        return ("iteration number", "condition")[slot] if slot < 2 else "carried value"
    if owner.op == "Scan":
        carried = len(owner.inputs) - int(owner.attrs["num_scan_inputs"])
        return "carried value" if slot < carried else "scan input"
    return "input"


# --- prefix masks, for recurrences that need lengths ---

_MOVES = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_ELEMENTWISE = frozenset({"Add", "Cast", "Equal", "Greater", "Less", "Mul", "Neg", "Not", "Sub"})
"""Operators between a mask and the Mul or Where that it controls."""


def mask_remedies(engine: Engine, reason: Reason, names: Container[str]) -> list[Remedy]:
    """The masks with one of these names that a reason says are not known to be prefix masks.

    Their time axis is the one that the loop runs along.
    """
    if UNKNOWN_MASK not in reason.sentence or not isinstance(reason.place, Node):
        return []
    loop = counted_loop(engine.facts, reason.place)
    reads = () if loop is None else loop.reads
    origins = (o for read in reads for o in elementwise_origins(engine.facts, read))
    axes = {origin.tensor: origin.axis for origin in origins}
    masks = (_mask_of(engine, value, names) for value in _values(reason))
    return [Remedy("--prefix-mask", m.name, axes[m]) for m in masks if m in axes]


def _values(reason: Reason) -> Iterator[Tensor]:
    for value in reason.values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Node):
            yield from value.inputs[: 1 if value.op == "Where" else None]


def _mask_of(engine: Engine, tensor: Tensor, names: Container[str]) -> Tensor | None:
    """The earliest value of the main graph, boolean or an input, that a tensor is computed from
    element by element; None if there is none.
    """
    index, facts, found = engine.index, engine.facts, None
    while True:
        tensor = _whole_sequence(engine, tensor)
        node = index.producer(tensor)
        is_input = node is None and not isinstance(tensor, Constant)
        wide = [n for n in facts.shape(tensor) or () if n != 1]
        may_be = (is_input or facts.dtype(tensor) == TensorProto.BOOL) and len(wide) <= MOST_AXES
        if may_be and index.home(tensor) is index.root and tensor.name in names:
            found = tensor
        if node is not None and reversed_axis(facts, node) is not None:
            # A reversed prefix mask is not a prefix mask, but the mask before may be one.
            tensor, found = node.inputs[0], None
            continue
        if node is None or node.domain or node.op not in _ELEMENTWISE | _MOVES:
            return found
        operands = [t for t in node.inputs[: 1 if node.op in _MOVES else None] if t.name]
        varying = {t for t in operands if not facts.is_constant(t)}
        if len(varying) != 1:
            return found
        (tensor,) = varying


def _whole_sequence(engine: Engine, tensor: Tensor) -> Tensor:
    """The sequence, for a slice that a counted loop reads; any other value itself."""
    home = engine.index.home(tensor)
    owner = None if home is None else engine.index.owner(home)
    loop = None if owner is None else counted_loop(engine.facts, owner)
    reads = () if loop is None else loop.reads
    return next((read.sequence for read in reads if read.slice is tensor), tensor)
