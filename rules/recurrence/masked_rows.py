"""Rows of a loop that are masked only behind it.

ys = Loop(…) { h1 = cell(x_t, h)  h' = Where(m_t, h1, h)  yield h1 }    z = Where(m, ys, 0)

Beyond the length of a row h1 is of no use, and so nobody misses it.
"""

from __future__ import annotations

from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import ScanOutput
from .layout import Layout
from .length_reads import Length, compared_along


def is_masked_behind(
    facts: Facts, steps: CountedLoop, length: Length, value: Tensor, layout: Layout
) -> bool:
    """Whether of the rows that a value of the body becomes none is read beyond the length."""
    return all(
        _is_masked(facts, length, use, row, layout)
        for row in steps.scan_outputs
        if row.slice is value and row.stacked is not None
        for use in facts.index.uses(row.stacked)
    )


def _is_masked(facts: Facts, length: Length, use: Use, row: ScanOutput, layout: Layout) -> bool:
    """Whether the rows are chosen within the length, and something else beyond it."""
    node = use.reader
    if not isinstance(node, Node) or node.domain or node.op != "Where" or row.reverse:
        return False
    mask = facts.shape(node.inputs[0])
    missing = layout.rank + 1 - len(mask or ())
    time = row.axis - missing
    if mask is None or missing < 0 or time < 0:
        return False
    batch = None if layout.batch is None else layout.batch + (layout.batch >= row.axis) - missing
    if any(n != 1 for k, n in enumerate(mask) if k not in (time, batch)):
        return False
    found = compared_along(facts, node.inputs[0], time)
    return found is not None and found[0] == length and use.slot == (1 if found[1] else 2)
