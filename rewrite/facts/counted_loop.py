"""One view of all loops that take a known number of steps, whether they stand as Scan or as Loop.

onnxruntime runs no Scan over an empty axis, so a loop that may not run at all stays a Loop whose
body reads `Gather(x, iteration)`. What a rule wants to know is the same for both: which slices an
iteration reads, which states it carries, which rows it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.index import Use
from ..graph.ir import Graph, Node, Tensor
from ..graph.views import LoopView, ScanOutput, ScanView, CarriedValue
from . import symbolic
from .facts import Facts
from .symbolic import Dim


@dataclass(frozen=True)
class SliceRead:
    """Iteration i reads slice i of a sequence, the last one first where reversed."""

    sequence: Tensor
    """All slices (outside)."""
    slice: Tensor
    """What an iteration reads (inside): the shape of the sequence without the axis."""
    axis: int
    """Never negative."""
    reverse: bool
    gather: Node | None
    """The node that reads, in a Loop; None where the slice is an input of a Scan body."""


@dataclass(frozen=True)
class CountedLoop:
    """A loop that ends after a number of iterations known before the first."""

    node: Node
    body: Graph
    carried: list[CarriedValue]
    reads: list[SliceRead]
    rows: list[ScanOutput]
    """What each iteration adds to a result; axes never negative."""
    count: Dim | None
    """Number of iterations; None when not even a symbol is known for it."""
    trip: Tensor | None
    """The trip count of a Loop; None for a Scan."""
    iteration: Tensor | None
    """The iteration number, a scalar; None for a Scan."""

    @property
    def surely_runs(self) -> bool:
        """Whether there is a first iteration in every run; onnxruntime refuses a Scan without."""
        return self.trip is None or (self.count is not None and symbolic.positive(self.count))

    def iteration_uses(self, facts: Facts) -> list[Use]:
        """Where the iteration number is read other than to read slices."""
        if self.iteration is None:
            return []
        gathers = {r.gather for r in self.reads}
        return [use for use in facts.index.uses(self.iteration) if use.reader not in gathers]


def counted_loop(facts: Facts, node: Node) -> CountedLoop | None:
    """The view of a Loop or Scan; None where a condition may end it or ranks are not known."""
    if node.domain:
        return None
    if node.op == "Scan" and facts.opset >= 9:
        return _steps_of_scan(facts, node)
    return _steps_of_loop(facts, node) if node.op == "Loop" else None


def _steps_of_loop(facts: Facts, node: Node) -> CountedLoop | None:
    view = LoopView(node)
    if view.trip is None or not view.never_stops_early(facts) or view.iteration_shape != ():
        return None
    rows = [
        ScanOutput(row, stacked if stacked.name else None, 0, False)
        for row, stacked in zip(view.scan_outputs, node.outputs[len(view.carried) :])
    ]
    count = view.trips(facts)
    reads = _gathers(facts, view, count)
    return CountedLoop(node, view.body, view.carried, reads, rows, count, view.trip, view.iteration)


def _gathers(facts: Facts, view: LoopView, count: Dim | None) -> list[SliceRead]:
    """Reads of outer values at the iteration number, in the order in which they run.

    One that surely leaves its axis is none: every run fails there.
    """
    reads = []
    for reader in facts.index.consumers(view.iteration):
        if reader.op != "Gather" or reader.domain or facts.index.graph_of(reader) is not view.body:
            continue
        sequence, position = reader.inputs
        shape = facts.shape(sequence)
        if position is not view.iteration or not shape:
            continue
        axis = reader.attrs.get("axis", 0) % len(shape)
        fits = count is None or symbolic.le(count, shape[axis]) is not False
        if fits and facts.index.is_outside(sequence, view.body):
            reads.append(SliceRead(sequence, reader.outputs[0], axis, False, reader))
    return sorted(reads, key=lambda read: read.gather.order if read.gather is not None else 0.0)


def _steps_of_scan(facts: Facts, node: Node) -> CountedLoop | None:
    view = ScanView(node)
    reads = []
    count: Dim | None = None
    for scanned in view.scan_inputs:
        shape = facts.shape(scanned.sequence)
        if shape is None:
            return None
        axis = scanned.axis % len(shape)
        count = shape[axis] if count is None or isinstance(shape[axis], int) else count
        reads.append(SliceRead(scanned.sequence, scanned.slice, axis, scanned.reverse, None))
    rows = []
    for output in view.scan_outputs:
        rank = facts.rank(output.row)
        if rank is None and output.axis < 0:
            return None
        axis = output.axis if rank is None else output.axis % (rank + 1)
        rows.append(ScanOutput(output.row, output.stacked, axis, output.reverse))
    return CountedLoop(node, view.body, view.carried, reads, rows, count, None, None)
