"""Control-flow nodes by role: trip count, condition, states, scan inputs and outputs, branches.

Rules speak of roles; which input or output slot a role occupies is known only here (ONNX operator
specification: Loop, Scan, If).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..facts import symbolic
from .ir import Graph, Node, Tensor

if TYPE_CHECKING:
    from ..facts.facts import Facts
    from ..facts.symbolic import Dim


NO_LIMIT = 1 << 62
"""A trip count at least this large is no bound: at a nanosecond per iteration it lasts a century.
Exporters write the largest int64 for none."""


@dataclass(frozen=True)
class CarriedValue:
    """A loop-carried dependency."""

    initial: Tensor
    """Value before the first iteration (outside)."""
    input: Tensor
    """Value at the start of an iteration (inside)."""
    output: Tensor
    """Value at the end of an iteration (inside)."""
    final: Tensor | None
    """Value after the last iteration (outside); None when the node does not list it."""


@dataclass(frozen=True)
class ScanInput:
    """A tensor of which each iteration reads one slice."""

    sequence: Tensor
    """The whole (outside)."""
    slice: Tensor
    """What an iteration reads (inside)."""
    axis: int
    """The axis of the sequence that the iterations run along; the slice lacks it."""
    reverse: bool
    """Whether the first iteration reads the last slice."""


@dataclass(frozen=True)
class ScanOutput:
    """A tensor of which each iteration writes one slice."""

    row: Tensor
    """What an iteration writes (inside)."""
    stacked: Tensor | None
    """All rows (outside); None when the node does not list them."""
    axis: int
    """The axis of `stacked` that the iterations run along."""
    reverse: bool
    """Whether the first iteration writes the last row."""


def _given(node: Node, slot: int) -> Tensor | None:
    if slot < len(node.inputs) and node.inputs[slot].name:
        tensor: Tensor = node.inputs[slot]
        return tensor
    return None


def _result(node: Node, slot: int) -> Tensor | None:
    if slot < len(node.outputs) and node.outputs[slot].name:
        tensor: Tensor = node.outputs[slot]
        return tensor
    return None


def _declared_shape(tensor: Tensor) -> tuple[int, ...]:
    info = tensor.info
    return (1,) if info is not None and len(info.type.tensor_type.shape.dim) == 1 else ()


class IfView:
    """`If(condition)` with its two branches."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The If."""
        self.condition: Tensor = node.inputs[0]
        """Which branch runs."""
        self.then: Graph = node.attrs["then_branch"]
        """The branch for true."""
        self.orelse: Graph = node.attrs["else_branch"]
        """The branch for false."""

    def branch(self, taken: bool) -> Graph:
        """The branch for a condition."""
        return self.then if taken else self.orelse


class LoopView:
    """`Loop(trip, condition, states…)`; the body takes (iteration, condition, states…)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The Loop."""
        self.body: Graph = node.attrs["body"]
        """What runs in each iteration."""
        self.trip = _given(node, 0)
        """Largest number of iterations; None when only the condition ends the loop."""
        self.condition = _given(node, 1)
        """Whether the first iteration runs; None for yes."""
        self.iteration: Tensor = self.body.inputs[0]
        """The number of the iteration, from 0 (inside)."""
        self.condition_in: Tensor = self.body.inputs[1]
        """The condition under which an iteration runs (inside): true."""
        self.condition_out: Tensor = self.body.outputs[0]
        """Whether there is another iteration (inside)."""
        self.carried = [
            CarriedValue(
                node.inputs[2 + place],
                self.body.inputs[2 + place],
                self.body.outputs[1 + place],
                _result(node, place),
            )
            for place in range(len(node.inputs) - 2)
        ]
        """The loop-carried dependencies."""
        self.scan_outputs: list[Tensor] = list(self.body.outputs[1 + len(self.carried) :])
        """The rows, inside the body."""

    @property
    def iteration_shape(self) -> tuple[int, ...]:
        """The iteration number is a scalar, or has one axis of size 1 where the body says so."""
        return _declared_shape(self.iteration)

    @property
    def condition_shape(self) -> tuple[int, ...]:
        """Likewise for the condition a body is given."""
        return _declared_shape(self.condition_in)

    def trips(self, facts: Facts) -> Dim | None:
        """The number of iterations unless a condition ends the loop before; None if not known."""
        count = None if self.trip is None else facts.scalar(self.trip)
        return None if isinstance(count, bool) else count

    def surely_runs(self, facts: Facts) -> bool:
        """Whether there is a first iteration in every run."""
        if self.condition is not None and facts.scalar(self.condition) is not True:
            return False
        count = self.trips(facts)
        return self.trip is None or (count is not None and symbolic.positive(count))

    def never_stops_early(self, facts: Facts) -> bool:
        """Whether the condition is true before and after every iteration."""
        if self.condition is not None and facts.scalar(self.condition) is not True:
            return False
        out = self.condition_out
        return facts.scalar(out) is True or facts.index.original(out) is self.condition_in


class ScanView:
    """`Scan(states…, sequences…)`; the body takes (states…, slices…). Opset 9 and later."""

    def __init__(self, node: Node) -> None:
        self.node = node
        """The Scan."""
        self.body: Graph = node.attrs["body"]
        """What runs in each iteration."""
        count = int(node.attrs["num_scan_inputs"])
        carried = len(node.inputs) - count
        self.carried = [
            CarriedValue(node.inputs[i], self.body.inputs[i], self.body.outputs[i], _result(node, i))
            for i in range(carried)
        ]
        """The loop-carried dependencies."""
        in_axes = node.attrs.get("scan_input_axes") or [0] * count
        in_ways = node.attrs.get("scan_input_directions") or [0] * count
        self.scan_inputs = [
            ScanInput(
                node.inputs[carried + i],
                self.body.inputs[carried + i],
                in_axes[i],
                bool(in_ways[i]),
            )
            for i in range(count)
        ]
        """The tensors that are read slice by slice."""
        rows = self.body.outputs[carried:]
        out_axes = node.attrs.get("scan_output_axes") or [0] * len(rows)
        out_ways = node.attrs.get("scan_output_directions") or [0] * len(rows)
        self.scan_outputs = [
            ScanOutput(row, _result(node, carried + i), out_axes[i], bool(out_ways[i]))
            for i, row in enumerate(rows)
        ]
        """The tensors that are written row by row."""
