"""Where a value comes from: the nodes that compute it, back to what a user can assert."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from ...rewrite.engine.miss import describe
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies
from ...rewrite.symbolic import Dim, Expr, symbols
from ..control import value_text

MOST_LINES = 10
"""Values told of one chain."""
_SMALL = 8
"""Elements an input may have for a user to give its value."""
_SIZES = frozenset({"Shape", "Size"})
"""Operators that read no elements."""


class Origin:
    """The values that one value depends on, nearest first, constants left out."""

    def __init__(self, facts: Facts, tensor: Tensor) -> None:
        self._facts = facts
        self._index = facts.index
        self.values: list[Tensor] = []
        """At most MOST_LINES."""
        self.remedies: list[str] = []
        """Options of the command line that would say more of the value."""
        self.beyond: list[str] = []
        """What it depends on that no option says anything of."""
        for value in self._behind(tensor, lambda _: False):
            self.values.append(value)
            if len(self.values) == MOST_LINES:
                break
        if facts.dtype(tensor) in FLOAT_OR_DOUBLE:  # of which only the sizes are ever known
            self._add_sizes(tensor)
        else:
            deque(self._behind(tensor, self._is_cause), maxlen=0)
        self.remedies = list(dict.fromkeys(self.remedies))
        self.beyond = list(dict.fromkeys(self.beyond))

    def _behind(self, tensor: Tensor, ends: Callable[[Tensor], bool]) -> Iterator[Tensor]:
        """A value and what it is computed from, nearest first; no further than where it `ends`."""
        waiting, seen = deque([tensor]), {tensor}
        while waiting:
            value = waiting.popleft()
            yield value
            node = None if ends(value) else self._index.producer(value)
            for operand in () if node is None else self._operands(node):
                if operand not in seen and not self._facts.is_constant(operand):
                    seen.add(operand)
                    waiting.append(operand)

    def _operands(self, node: Node) -> Iterator[Tensor]:
        yield from (t for t in node.inputs if t.name)
        if bodies(node):
            yield from self._index.captures(node)

    # --- what would say more ---

    def _is_cause(self, tensor: Tensor) -> bool:
        """Takes down what would say more of a value, where it is clear what that is."""
        if self._facts.is_constant(tensor):
            return True
        node = self._index.producer(tensor)
        numbers = [n for n in self._facts.of(tensor).values or () if not isinstance(n, int)]
        options = [_dim_options(n) if isinstance(n, Expr) else [] for n in numbers]
        if numbers and all(options):
            self.remedies += [option for each in options for option in each]
        elif node is None:
            self._add_source(tensor)
        elif node.op in _SIZES and not node.domain:
            self._add_sizes(node.inputs[0])
        else:
            return False
        return True

    def _add_source(self, tensor: Tensor) -> None:
        """What no node computes, of which the elements count."""
        home = self._index.home(tensor)
        owner = None if home is None else self._index.owner(home)
        if owner is not None:
            self.beyond.append(
                f"the {role(owner, home, tensor)} `{tensor.name}` of {_short(owner)}"
            )
            return
        shape = self._facts.shape(tensor)
        sizes = [dim for dim in shape or () if isinstance(dim, int)]
        if shape is not None and len(sizes) == len(shape) and _product(sizes) <= _SMALL:
            self.remedies.append(f"--input {tensor.name}=…")
        else:
            self.beyond.append(f"the elements of `{tensor.name}`")

    def _add_sizes(self, tensor: Tensor) -> None:
        """A value of which only the sizes count."""
        shape = self._facts.shape(tensor)
        options = [option for dim in shape or () for option in _dim_options(dim)]
        self.remedies += options
        vague = shape is None or any(s.serial >= 0 for dim in shape for s in symbols(dim))
        if not vague:
            return
        asked = list(self._open_inputs(tensor))
        self.remedies += [f"--shape {name}=…" for name in asked]
        if not asked and not options:
            self.beyond.append(f"the shape of `{tensor.name}`")

    def _open_inputs(self, tensor: Tensor) -> Iterator[str]:
        """The inputs of the model that a value is computed from and whose sizes have no names."""
        for value in self._behind(tensor, lambda _: False):
            if self._index.home(value) is self._index.root and self._index.producer(value) is None:
                shape = self._facts.shape(value)
                if shape is None or any(s.serial >= 0 for dim in shape for s in symbols(dim)):
                    yield value.name

    # --- for a reader ---

    def lines(self) -> list[str]:
        """One line for each value: how it is computed, and what is known of it."""
        return [self._line(value) for value in self.values]

    def _line(self, tensor: Tensor) -> str:
        node = self._index.producer(tensor)
        what = self._given(tensor) if node is None else self._expression(node)
        return f"`{tensor.name}` = {what}: {known(self._facts, tensor)}"

    def _given(self, tensor: Tensor) -> str:
        if isinstance(tensor, Constant):
            return "default of an input" if tensor.overridable else "constant"
        home = self._index.home(tensor)
        owner = None if home is None else self._index.owner(home)
        if owner is None:
            return "input of the model"
        return f"{role(owner, home, tensor)} of {_short(owner)}"

    def _expression(self, node: Node) -> str:
        return f"{node.op}({', '.join(self._operand(t) for t in node.inputs if t.name)})"

    def _operand(self, tensor: Tensor) -> str:
        constant = self._facts.constant(tensor) if self._facts.is_constant(tensor) else None
        if constant is not None and constant.size == 1:
            return str(constant.reshape(-1)[0])
        return f"`{tensor.name}`"


def _dim_options(dim: Dim) -> list[str]:
    """What a user can say of a size that the file names; nothing if it depends on other ones."""
    parts = sorted(symbols(dim), key=lambda s: s.name)
    return [f"--dim {s.name}=…" for s in parts] if all(s.serial < 0 for s in parts) else []


def dim_options(values: tuple[object, ...]) -> list[str]:
    """What a user can say of the sizes among some values."""
    found = (_dim_options(value) for value in values if isinstance(value, Expr))
    return list(dict.fromkeys(option for options in found for option in options))


def _short(owner: Node) -> str:
    return describe(owner) if owner.name else f"{owner.op} `{owner.outputs[0].name}`"


def known(facts: Facts, tensor: Tensor) -> str:
    """Type, shape and, where it is known, the value."""
    return value_text(facts.of(tensor))


def role(owner: Node, body: Graph | None, tensor: Tensor) -> str:
    """What an input of a body is to its node (ONNX operator specification: Loop, Scan)."""
    slot = next((k for k, t in enumerate(body.inputs) if t is tensor), 0) if body else 0
    if owner.op == "Loop":
        return ("iteration number", "condition")[slot] if slot < 2 else "state"
    if owner.op == "Scan":
        states = len(owner.inputs) - int(owner.attrs["num_scan_inputs"])
        return "state" if slot < states else "scan input"
    return "input"


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
