"""Operator counts of a model before and after, as a table or a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

CONTROL_FLOW = ("If", "Loop", "Scan")
RECURRENT = ("LSTM", "GRU", "RNN")

Counts = Mapping[str, int]


def rows(columns: Sequence[Counts]) -> list[tuple[str, list[int]]]:
    """The rows of a table with a column for each of some counts: all nodes, control flow, and
    recurrent operators where there are any.
    """
    recurrent = [op for op in RECURRENT if any(counts.get(op) for counts in columns)]
    totals = [sum(counts.values()) for counts in columns]
    return [
        ("nodes", totals),
        *((op, [counts.get(op, 0) for counts in columns]) for op in (*CONTROL_FLOW, *recurrent)),
    ]


def before_after(before: Counts, after: Counts) -> Table:
    """A table of the counts before and after."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, (old, new) in rows([before, after]):
        table.add_row(name, str(old), Text(str(new), style="green" if new < old else ""))
    return table


def brief(before: Counts, after: Counts) -> str:
    """The same in one line without zeros: `nodes 120 → 35, If 25 → 0, LSTM 2 → 1`."""
    changes = [(name, old, new) for name, (old, new) in rows([before, after]) if old or new]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in changes)
