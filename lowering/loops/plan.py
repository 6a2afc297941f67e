"""What Loop and Scan have in common: a body, how often it runs, what it reads and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...rewrite.graph.ir import Tensor
from ..bodies import Body, Step
from ..values import Value


@dataclass(frozen=True)
class CarriedValue:
    """A loop-carried dependency."""

    input: Tensor
    """The body's input."""
    initial: Value
    """A tensor or a list."""


@dataclass(frozen=True)
class ScanInput:
    """A scan input: each iteration reads one slice."""

    slice: Tensor
    """The body's input."""
    data: Value
    axis: int
    reverse: bool


@dataclass(frozen=True)
class ScanOutput:
    """A scan output: each iteration returns one slice."""

    slice: int
    """The position of the slice among the body's outputs."""
    output: int
    """The position of the whole among the node's outputs."""
    axis: int
    reverse: bool
    is_wanted: bool
    """Whether the node lists the output."""


@dataclass(frozen=True)
class Plan:
    """A Loop or Scan, seen from one function: operands are values of that function."""

    name: str
    place: str
    """The node, for messages."""
    body: Body
    captured: Mapping[Tensor, Value]
    limit: Value | None
    """The trip count, an int64 scalar; None if there is none, or if scan inputs determine it."""
    condition: Value | None
    """Whether there is a first iteration, a bool scalar; None for true."""
    iteration: Tensor | None
    """The body's input that is the number of the iteration."""
    given_condition: Tensor | None
    """The body's input that is the condition, which is always true there."""
    returns_condition: bool
    """Whether the body's first output is the condition."""
    carried_values: Sequence[CarriedValue]
    scan_inputs: Sequence[ScanInput]
    scan_outputs: Sequence[ScanOutput]

    @property
    def first_carried(self) -> int:
        """The position of the first carried value among the body's outputs."""
        return 1 if self.returns_condition else 0

    @property
    def wanted(self) -> list[ScanOutput]:
        """The scan outputs that are made."""
        return [scan_output for scan_output in self.scan_outputs if scan_output.is_wanted]

    def accumulates(self, index: int) -> bool:
        """Whether a carried value is a sequence that the body only appends to."""
        carried = self.carried_values[index].input
        outputs = self.body.graph.outputs
        result = outputs[self.first_carried + index]
        readers = self._readers.get(carried, [])
        if len(readers) != 1 or outputs.count(result) != 1 or carried in outputs:
            return False
        node = readers[0].node
        return (
            node.op == "SequenceInsert"
            and list(node.outputs) == [result]
            and [slot for slot, given in enumerate(node.inputs) if given.name] == [0, 1]
            and node.inputs[0] is carried is not node.inputs[1]
            and result not in self._readers
        )

    @cached_property
    def _readers(self) -> dict[Tensor, list[Step]]:
        """The steps of the body that read a value, themselves or in their bodies."""
        readers: dict[Tensor, list[Step]] = {}
        for step in self.body.steps:
            captures = [tensor for body in step.bodies.values() for tensor in body.captures]
            for tensor in {*step.node.inputs, *captures}:
                readers.setdefault(tensor, []).append(step)
        return readers

    def operands(self) -> dict[Any, Value]:
        """All values of the function, by keys that `with_operands` knows."""
        found: dict[Any, Value] = {("captured", tensor): v for tensor, v in self.captured.items()}
        found.update(_optional("limit", self.limit))
        found.update(_optional("condition", self.condition))
        found.update(
            (("carried", i), carried.initial) for i, carried in enumerate(self.carried_values)
        )
        found.update(
            (("scan input", i), scan_input.data) for i, scan_input in enumerate(self.scan_inputs)
        )
        return found

    def with_operands(self, values: Mapping[Any, Value]) -> Plan:
        """The same plan seen from another function."""
        return replace(
            self,
            captured={tensor: values["captured", tensor] for tensor in self.captured},
            limit=values.get("limit"),
            condition=values.get("condition"),
            carried_values=[
                replace(carried, initial=values["carried", i])
                for i, carried in enumerate(self.carried_values)
            ],
            scan_inputs=[
                replace(scan_input, data=values["scan input", i])
                for i, scan_input in enumerate(self.scan_inputs)
            ],
        )


def _optional(key: str, value: Value | None) -> Iterator[tuple[Any, Value]]:
    if value is not None:
        yield key, value
