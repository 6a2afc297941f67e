"""Control-flow nodes by role: branches, trip count, condition, carried values, scan inputs.

Rules speak of roles. Which input or output slot a role occupies is known only here and in
`looplift.rewrite.engine.loop_edit` (ONNX operator specification: Loop, Scan, If). `LoopSlots` is
for code that works on protos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .. import symbolic
from ..symbolic import Dim
from .index import Index
from .ir import Graph, Node, Tensor, optional

NO_LIMIT = 1 << 62
"""A trip count at least this large is not a limit: at a nanosecond per iteration it takes a
century. Exporters write the largest int64 for "no trip count"."""


NO_SLOT = -1


class RoleSlots(NamedTuple):
    """The slots that one role of a node with bodies occupies, or NO_SLOT."""

    input: int = NO_SLOT
    """Among the inputs of the node."""
    parameter: int = NO_SLOT
    """Among the inputs of the body."""
    result: int = NO_SLOT
    """Among the outputs of the body."""
    output: int = NO_SLOT
    """Among the outputs of the node."""


@dataclass(frozen=True)
class LoopSlots:
    """The slots of the roles of a Loop or Scan, whatever represents the node."""

    carried: int
    """The number of carried values."""
    scan_inputs: int
    """The number of scan inputs."""
    first_input: int
    """The slot of the first carried value among the inputs, of the node and of the body."""
    first_result: int
    """The slot of the first carried value among the outputs of the body."""

    @classmethod
    def of(cls, op: str, inputs: int, scan_inputs: int = 0) -> LoopSlots:
        """The slots of a Loop or Scan with this number of inputs."""
        first = 2 if op == "Loop" else 0  # after the trip count and the condition
        return cls(inputs - first - scan_inputs, scan_inputs, first, first // 2)

    def of_carried(self, number: int) -> RoleSlots:
        """The slots of a carried value."""
        first = self.first_input + number
        return RoleSlots(first, first, self.first_result + number, number)

    def of_scan_input(self, number: int) -> RoleSlots:
        """The slots of a scan input."""
        first = self.first_input + self.carried + number
        return RoleSlots(input=first, parameter=first)

    def of_scan_output(self, number: int) -> RoleSlots:
        """The slots of a scan output."""
        following = self.carried + number
        return RoleSlots(result=self.first_result + following, output=following)


class KnownScalars(Protocol):
    """What a LoopView reads of the facts of a model (`looplift.rewrite.facts.facts.Facts`)."""

    index: Index

    def scalar(self, tensor: Tensor) -> Dim | bool | None:
        """The only element of an integer or bool tensor, where it is known."""


@dataclass(frozen=True)
class CarriedValue:
    """A loop-carried value; the ONNX specification calls it a loop-carried dependency, or state."""

    initial: Tensor
    """The value before the first iteration (outside)."""
    input: Tensor
    """The value at the start of an iteration (inside)."""
    output: Tensor
    """The value at the end of an iteration (inside)."""
    final: Tensor | None
    """The value after the last iteration (outside); None when the node does not return it."""


@dataclass(frozen=True)
class ScanInput:
    """A tensor that the iterations read slice by slice."""

    sequence: Tensor
    """The whole tensor (outside)."""
    slice: Tensor
    """The slice that an iteration reads (inside)."""
    axis: int
    """The axis of the sequence that the iterations run along; the slices lack it."""
    reverse: bool
    """Whether the first iteration reads the last slice."""


@dataclass(frozen=True)
class ScanOutput:
    """A tensor that the iterations write slice by slice."""

    slice: Tensor
    """The slice that an iteration writes (inside)."""
    stacked: Tensor | None
    """The whole tensor (outside); None when the node does not return it."""
    axis: int
    """The axis of `stacked` that the iterations run along."""
    reverse: bool
    """Whether the first iteration writes the last slice."""


def _carried(node: Node, slots: LoopSlots) -> list[CarriedValue]:
    body: Graph = node.attrs["body"]
    return [
        CarriedValue(
            node.inputs[slot.input],
            body.inputs[slot.parameter],
            body.outputs[slot.result],
            optional(node.outputs, slot.output),
        )
        for slot in map(slots.of_carried, range(slots.carried))
    ]


def declared_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a scalar that a loop gives its body: (1,) where the body declares that."""
    info = tensor.info
    return (1,) if info is not None and len(info.type.tensor_type.shape.dim) == 1 else ()


class IfView:
    """`If(condition)` with its two branches."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The If."""
        self.condition: Tensor = node.inputs[0]
        """The condition that selects the branch."""
        self.then: Graph = node.attrs["then_branch"]
        """The branch that runs if the condition is true."""
        self.orelse: Graph = node.attrs["else_branch"]
        """The branch that runs if the condition is false."""

    def branch(self, taken: bool) -> Graph:
        """The branch for a value of the condition."""
        return self.then if taken else self.orelse


class LoopView:
    """`Loop(trip count, condition, carried…)`; its body takes (iteration, condition, carried…)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The Loop."""
        self.body: Graph = node.attrs["body"]
        """The graph that runs in each iteration."""
        self.trip: Tensor | None = optional(node.inputs, 0)
        """The trip count: the largest number of iterations. None when only the condition ends the
        loop."""
        self.condition: Tensor | None = optional(node.inputs, 1)
        """Whether the first iteration runs; None means that it does."""
        self.iteration: Tensor = self.body.inputs[0]
        """The iteration number, from 0 (inside)."""
        self.condition_in: Tensor = self.body.inputs[1]
        """The condition under which an iteration runs (inside): always true."""
        self.condition_out: Tensor = self.body.outputs[0]
        """Whether the next iteration runs (inside)."""
        slots = LoopSlots.of("Loop", len(node.inputs))
        self.carried: list[CarriedValue] = _carried(node, slots)
        """The loop-carried values."""
        self.scan_outputs: list[Tensor] = self.body.outputs[slots.of_scan_output(0).result :]
        """The slices that an iteration writes to scan outputs (inside)."""

    @property
    def iteration_shape(self) -> tuple[int, ...]:
        """The shape of the iteration number: a scalar, or (1,) where the body declares that."""
        return declared_shape(self.iteration)

    @property
    def condition_shape(self) -> tuple[int, ...]:
        """The shape of the condition that the body is given: a scalar, or (1,) if declared."""
        return declared_shape(self.condition_in)

    def trips(self, facts: KnownScalars) -> Dim | None:
        """The trip count as a number or expression; None if it is not known.

        The condition may end the loop earlier.
        """
        count = None if self.trip is None else facts.scalar(self.trip)
        return None if isinstance(count, bool) else count

    def runs_at_least_once(self, facts: KnownScalars) -> bool:
        """Whether every run is known to have at least one iteration."""
        if self.condition is not None and facts.scalar(self.condition) is not True:
            return False
        count = self.trips(facts)
        return self.trip is None or (count is not None and symbolic.positive(count))

    def never_stops_early(self, facts: KnownScalars) -> bool:
        """Whether the condition is known to be true before and after every iteration."""
        if self.condition is not None and facts.scalar(self.condition) is not True:
            return False
        out = self.condition_out
        return facts.scalar(out) is True or facts.index.original(out) is self.condition_in


class ScanView:
    """`Scan(carried…, sequences…)`; its body takes (carried…, slices…). Opset 9 and later."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The Scan."""
        self.body: Graph = node.attrs["body"]
        """The graph that runs in each iteration."""
        count = int(node.attrs["num_scan_inputs"])
        slots = LoopSlots.of("Scan", len(node.inputs), count)
        carried, body = slots.carried, self.body
        self.carried: list[CarriedValue] = _carried(node, slots)
        """The loop-carried values."""
        axes = node.attrs.get("scan_input_axes") or [0] * count
        directions = node.attrs.get("scan_input_directions") or [0] * count
        self.scan_inputs: list[ScanInput] = [
            ScanInput(
                node.inputs[carried + i], body.inputs[carried + i], axes[i], bool(directions[i])
            )
            for i in range(count)
        ]
        """The tensors that are read slice by slice."""
        slices = body.outputs[carried:]
        axes = node.attrs.get("scan_output_axes") or [0] * len(slices)
        directions = node.attrs.get("scan_output_directions") or [0] * len(slices)
        self.scan_outputs: list[ScanOutput] = [
            ScanOutput(each, optional(node.outputs, carried + i), axes[i], bool(directions[i]))
            for i, each in enumerate(slices)
        ]
        """The tensors that are written slice by slice."""
