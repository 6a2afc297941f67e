"""Counted loops: Loops and Scans whose trip count is known before the first iteration.

onnxruntime refuses a Scan over an empty axis, so a loop that may not run stays a Loop whose body
reads `Gather(x, iteration)`. A counted loop shows both forms alike: the slices that an iteration
reads, the values it carries, and the scan outputs it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import symbolic
from ..graph.index import Index, Use
from ..graph.ir import Constant, Graph, Node, Tensor
from ..graph.views import CarriedValue, LoopView, ScanOutput, ScanView
from ..symbolic import Dim
from .facts import Facts


@dataclass(frozen=True)
class SliceRead:
    """Iteration i reads slice i of a sequence, or slice n - 1 - i where reversed."""

    sequence: Tensor
    """All slices (outside). Its rank is known."""
    slice: Tensor
    """What an iteration reads (inside): the shape of the sequence without the axis."""
    axis: int
    """The axis that the iterations run along; never negative."""
    reverse: bool
    """Whether the first iteration reads the last slice."""
    gather: Node | None
    """The Gather that reads, in a Loop; None where the slice is an input of a Scan body."""


@dataclass(frozen=True)
class CountedLoop:
    """A Loop or Scan whose trip count is known before the first iteration."""

    node: Node
    """The Loop or Scan."""
    body: Graph
    """The graph that runs in each iteration."""
    carried: list[CarriedValue]
    """The loop-carried values."""
    reads: list[SliceRead]
    """The slices that an iteration reads, in the order of the body."""
    scan_outputs: list[ScanOutput]
    """Their axes are never negative."""
    count: Dim | None
    """The trip count, which may be negative; None when there is not even a symbol for it."""
    trip: Tensor | None
    """The trip count of a Loop as a tensor; None for a Scan."""
    iteration: Tensor | None
    """The iteration number, a scalar; None for a Scan."""

    @property
    def runs_at_least_once(self) -> bool:
        """Whether every run is known to have at least one iteration. A Scan always has one."""
        return self.trip is None or (self.count is not None and symbolic.positive(self.count))

    def reads_whole_axis(self, length: Dim) -> bool:
        """Whether the iterations are known to read every slice of an axis of this length."""
        if self.trip is None:
            return True
        if self.count is None:
            return False
        return symbolic.eq(symbolic.maximum(self.count, 0), length) is True

    def iteration_uses(self, facts: Facts) -> list[Use]:
        """The uses of the iteration number other than slice reads."""
        if self.iteration is None:
            return []
        gathers = {r.gather for r in self.reads}
        return [use for use in facts.index.uses(self.iteration) if use.reader not in gathers]

    def is_outer_value(self, index: Index, tensor: Tensor) -> bool:
        """Whether a value is a constant or is defined outside the body: it is loop-invariant.
        Nodes outside cannot read a constant of the body; `emit.constant` copies its values.
        """
        return isinstance(tensor, Constant) or index.is_outside(tensor, self.body)

    def carried_number(self, use: Use) -> int | None:
        """The number of the carried value that this use returns; None for any other use."""
        number = use.slot - (0 if self.iteration is None else 1)
        return number if use.reader is self.body and 0 <= number < len(self.carried) else None

    def is_scan_output_use(self, use: Use) -> bool:
        """Whether this use returns a value as the slice of a scan output."""
        first = len(self.carried) + (0 if self.iteration is None else 1)
        return use.reader is self.body and use.slot >= first

    def read_scan_outputs(self, index: Index) -> list[tuple[ScanOutput, Tensor]]:
        """The scan outputs that something reads after the loop, each with its stacked tensor."""
        listed = [(output, output.stacked) for output in self.scan_outputs]
        return [(output, t) for output, t in listed if t is not None and index.use_count(t)]


def counted_loop(facts: Facts, node: Node) -> CountedLoop | None:
    """A Loop or Scan as a counted loop; None where a condition may end it or a rank is not known.

    Also None for other nodes, and for the Scan of opset 8, which has another form.
    """
    if node.domain:
        return None
    if node.op == "Scan" and facts.opset >= 9:
        return _from_scan(facts, node)
    return _from_loop(facts, node) if node.op == "Loop" else None


def _from_loop(facts: Facts, node: Node) -> CountedLoop | None:
    view = LoopView(node)
    if view.trip is None or not view.never_stops_early(facts) or view.iteration_shape != ():
        return None
    scan_outputs = [
        ScanOutput(row, stacked if stacked.name else None, 0, False)
        for row, stacked in zip(view.scan_outputs, node.outputs[len(view.carried) :])
    ]
    count = view.trips(facts)
    reads = _slice_reads(facts, view, count)
    return CountedLoop(
        node, view.body, view.carried, reads, scan_outputs, count, view.trip, view.iteration
    )


def _slice_reads(facts: Facts, view: LoopView, count: Dim | None) -> list[SliceRead]:
    """The Gathers that read an outer value at the iteration number, in the order they run.

    Excludes a Gather that is known to read past the end of its axis: every run fails there.
    """
    reads = []
    gathers = [n for n in facts.index.consumers(view.iteration) if n.op == "Gather"]
    for gather in sorted(gathers, key=lambda n: n.order):
        if gather.domain or facts.index.graph_of(gather) is not view.body:
            continue
        sequence, position = gather.inputs
        shape = facts.shape(sequence)
        if position is not view.iteration or not shape:
            continue
        axis = gather.attrs.get("axis", 0) % len(shape)
        fits = count is None or symbolic.le(count, shape[axis]) is not False
        if fits and facts.index.is_outside(sequence, view.body):
            reads.append(SliceRead(sequence, gather.outputs[0], axis, False, gather))
    return reads


def _from_scan(facts: Facts, node: Node) -> CountedLoop | None:
    view = ScanView(node)
    reads = []
    count: Dim | None = None
    for scan_input in view.scan_inputs:
        shape = facts.shape(scan_input.sequence)
        if shape is None:
            return None
        axis = scan_input.axis % len(shape)
        count = shape[axis] if count is None or isinstance(shape[axis], int) else count
        reads.append(
            SliceRead(scan_input.sequence, scan_input.slice, axis, scan_input.reverse, None)
        )
    scan_outputs = []
    for output in view.scan_outputs:
        rank = facts.rank(output.slice)
        if rank is None and output.axis < 0:
            return None
        axis = output.axis if rank is None else output.axis % (rank + 1)
        scan_outputs.append(ScanOutput(output.slice, output.stacked, axis, output.reverse))
    return CountedLoop(node, view.body, view.carried, reads, scan_outputs, count, None, None)
