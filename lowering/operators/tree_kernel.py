"""The kernel of decision trees: each row walks down each tree, and the leaves are combined.

A walk reads one line of `links` for each branch, which has both next nodes. A leaf leads to itself,
so that several rows walk down a tree together until all are at leaves: the processor works on one
row while it waits for the nodes of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..scheduling.kernels.emission import bound, for_items

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": lambda a, b: a + b,
    "MIN": lambda a, b: tirx.min(a, b),
    "MAX": lambda a, b: tirx.max(a, b),
}
"""How the weights of leaves are combined."""
_FIRST = {"SUM": 0.0, "MIN": float("inf"), "MAX": -float("inf")}
_TOGETHER = 8
"""How many rows walk together."""
_COST = 100
"""The time of a walk, in multiply-adds."""
_NAMES = ("data", "roots", "links", "values", "ends", "targets", "weights", "results")


@dataclass(frozen=True)
class TreeKernel:
    """What is known of the trees when the kernel is compiled."""

    dtype: str
    """The type of the features, thresholds and results."""
    results: int
    """How many results a row has. A leaf has one weight if there is one."""
    shapes: Sequence[tuple[int, ...]]
    """Those of the roots and of the arrays of the table."""
    has_missing: bool
    """Whether NaN goes the first way of a branch."""
    combine: str
    """A key of `COMBINE`."""

    def build(self) -> tirx.PrimFunc:
        """(data [n, features], roots, links, values, ends, targets, weights) -> results."""
        with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
            ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
            rows, features = ib.int64(), ib.int64()
            handles = [ib.arg(name, ib.handle()) for name in _NAMES]
            shapes = [(rows, features), *self.shapes, (rows, self.results)]
            integers = ("roots", "links", "ends", "targets")
            buffers = {
                name: ib.match_buffer(handle, shape, "int32" if name in integers else self.dtype)
                for name, handle, shape in zip(_NAMES, handles, shapes)
            }
            # Relax passes that inspect kernels expect a block around the whole body.
            with ib.sblock("root"):
                groups = bound(rows // _TOGETHER)

                def walk_together(group: Any) -> None:
                    first = bound(group * _TOGETHER)
                    _Rows(self, [first + at for at in range(_TOGETHER)], buffers).emit()

                for_items(groups, groups * _TOGETHER * self.shapes[0][0] * _COST, walk_together)
                with ib.serial(rows % _TOGETHER) as at:
                    _Rows(self, [groups * _TOGETHER + at], buffers).emit()
        return builder.get()


class _Rows:
    """The walks of rows that are at the same tree."""

    def __init__(self, how: TreeKernel, rows: Sequence[Any], buffers: dict[str, Any]) -> None:
        self._how, self._rows = how, rows
        self._data, self._results = buffers["data"], buffers["results"]
        self._roots, self._links, self._values = (
            buffers[name] for name in ("roots", "links", "values")
        )
        self._ends, self._targets, self._weights = (
            buffers[name] for name in ("ends", "targets", "weights")
        )

    def emit(self) -> None:
        """Emits the walks down all trees, and the results of the rows."""
        how = self._how
        first = tirx.const(_FIRST[how.combine], how.dtype)
        (trees,) = how.shapes[0]
        if how.results == 1:
            totals = ib.alloc_buffer((len(self._rows),), how.dtype, scope="local")
            for at in range(len(self._rows)):
                ib.buffer_store(totals, first, [at])
            with ib.serial(trees) as tree:
                for at, leaf in enumerate(self._walk(tree)):
                    total = COMBINE[how.combine](totals[at], self._values[leaf])
                    ib.buffer_store(totals, total, [at])
            for at, row in enumerate(self._rows):
                ib.buffer_store(self._results, totals[at], [row, 0])
            return
        for row in self._rows:
            with ib.serial(how.results) as result:
                ib.buffer_store(self._results, first, [row, result])
        with ib.serial(trees) as tree:
            for row, leaf in zip(self._rows, self._walk(tree)):
                self._add(row, leaf)

    def _walk(self, tree: Any) -> list[Any]:
        """Emits the walks down a tree. Gives the leaves."""
        nodes = ib.alloc_buffer((len(self._rows),), "int32", scope="local")
        for at in range(len(self._rows)):
            ib.buffer_store(nodes, self._roots[tree], [at])
        at_branch = [self._links[nodes[at], 1] != nodes[at] for at in range(len(self._rows))]
        with ib.While(tirx.any(*at_branch)):
            for at, row in enumerate(self._rows):
                ib.buffer_store(nodes, self._next(row, nodes[at]), [at])
        return [nodes[at] for at in range(len(self._rows))]

    def _next(self, row: Any, node: Any) -> Any:
        feature, then, otherwise, missing = (self._links[node, column] for column in range(4))
        value = self._data[row, tirx.Cast("int64", feature)]
        holds = value <= self._values[node]
        if self._how.has_missing:
            holds = tirx.any(holds, tirx.all(missing != 0, tirx.isnan(value)))
        return tirx.Select(holds, then, otherwise)

    def _add(self, row: Any, leaf: Any) -> None:
        """Emits that the weights of a leaf are added to the results of a row."""
        number = self._links[leaf, 3]
        start = self._ends[number]
        with ib.serial(self._ends[number + 1] - start) as offset:
            target = tirx.Cast("int64", self._targets[start + offset])
            held = self._results[row, target]
            added = COMBINE[self._how.combine](held, self._weights[start + offset])
            ib.buffer_store(self._results, added, [row, target])
