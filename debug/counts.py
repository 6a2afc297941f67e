"""Operator counts of a model before and after, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

CONTROL = ("If", "Loop", "Scan")
RECURRENT = ("LSTM", "GRU", "RNN")

Counts = Mapping[str, int]


def rows(columns: Sequence[Counts]) -> list[tuple[str, list[int]]]:
    """What is shown of several counts: all nodes, control flow, and recurrences if there are any.

    A count under `nodes` is the number of all nodes, that of bodies included.
    """
    shown = [op for op in RECURRENT if any(counts.get(op) for counts in columns)]
    totals = [sum(counts.values()) for counts in columns]
    return [
        ("nodes", totals),
        *((op, [counts.get(op, 0) for counts in columns]) for op in (*CONTROL, *shown)),
    ]


def before_after(before: Counts, after: Counts) -> Table:
    """A table of what was there and what is left."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, (old, new) in rows([before, after]):
        table.add_row(name, str(old), Text(str(new), style="green" if new < old else ""))
    return table


def brief(before: Counts, after: Counts) -> str:
    """The same in one line: `nodes 120 → 35, If 25 → 0, LSTM 2 → 1`; nothing that is 0 twice."""
    changes = [(name, old, new) for name, (old, new) in rows([before, after]) if old or new]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in changes)
