"""Where a value comes from: the nodes that compute it, back to what a user can assert."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..rewrite.facts import Facts
from ..rewrite.ir import Constant, Graph, Node, Tensor
from ..rewrite.symbolic import symbols
from .control import value_text

MOST_LINES = 10
"""Values told of one chain."""
_SMALL = 8
"""Elements an input may have for a user to give its value."""


class Origin:
    """The values that one value depends on, nearest first, constants left out."""

    def __init__(self, facts: Facts, tensor: Tensor) -> None:
        self._facts = facts
        self._index = facts.index
        self.values: list[Tensor] = []
        """At most MOST_LINES, then those nothing in the graph computes."""
        self.sources: list[Tensor] = []
        """What no node computes: inputs of the model and of bodies."""
        self._follow(tensor)

    def _follow(self, tensor: Tensor) -> None:
        waiting, seen = deque([tensor]), {tensor}
        while waiting:
            value = waiting.popleft()
            node = self._index.producer(value)
            if node is None:
                self.sources.append(value)
            if len(self.values) < MOST_LINES:
                self.values.append(value)
            if node is None:
                continue
            for operand in (t for t in node.inputs if t.name):
                if operand not in seen and not self._facts.is_constant(operand):
                    seen.add(operand)
                    waiting.append(operand)

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
        return f"{role(owner, home, tensor)} of {owner.op} `{owner.name or owner.outputs[0].name}`"

    def _expression(self, node: Node) -> str:
        return f"{node.op}({', '.join(self._operand(t) for t in node.inputs if t.name)})"

    def _operand(self, tensor: Tensor) -> str:
        constant = self._facts.constant(tensor) if self._facts.is_constant(tensor) else None
        if constant is not None and constant.size == 1:
            return str(constant.reshape(-1)[0])
        return f"`{tensor.name}`"

    def remedies(self) -> Iterator[str]:
        """Options of the command line that would say more of the sources."""
        for tensor in self.sources:
            home = self._index.home(tensor)
            if home is not self._index.root or isinstance(tensor, Constant):
                continue
            fact = self._facts.of(tensor)
            if fact.shape is None:
                yield f"--shape {tensor.name}=…"
                continue
            sizes = [dim for dim in fact.shape if isinstance(dim, int)]
            if len(sizes) == len(fact.shape) and _product(sizes) <= _SMALL:
                yield f"--input {tensor.name}=…"
            named = {s.name for dim in fact.shape for s in symbols(dim) if s.serial < 0}
            yield from (f"--dim {name}=…" for name in sorted(named))
            if any(s.serial >= 0 for dim in fact.shape for s in symbols(dim)):
                yield f"--shape {tensor.name}=…"


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
