"""A model before and after, as a table or a line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..rewrite.storage.summary import ModelSummary, size_text

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


def before_after(before: ModelSummary, after: ModelSummary) -> list[RenderableType]:
    """Two models side by side: inputs, outputs, opset, size, and the operators that changed."""
    values = Table(box=None, pad_edge=False, show_header=False)
    for name, old, new in (
        ("inputs", before.inputs, after.inputs),
        ("outputs", before.outputs, after.outputs),
    ):
        for position, (was, now) in enumerate(itertools.zip_longest(old, new, fillvalue="none")):
            text = Text(was) if was == now else Text.assemble(was, " → ", (now, "green"))
            values.add_row("" if position else name, text)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_row("opset", before.opset, after.opset)
    table.add_row("size", size_text(before.size), size_text(after.size))
    shown = rows([before.operators, after.operators])
    names = {name for name, _ in shown}
    for op in sorted({*before.operators, *after.operators} - names):
        counts = [model.operators.get(op, 0) for model in (before, after)]
        if counts[0] != counts[1]:
            shown.append((op, counts))
    for name, (old_count, new_count) in shown:
        style = "green" if new_count < old_count else ""
        table.add_row(name, str(old_count), Text(str(new_count), style=style))
    return [values, "", table]


def brief(before: Counts, after: Counts) -> str:
    """The same in one line without zeros: `nodes 120 → 35, If 25 → 0, LSTM 2 → 1`."""
    changes = [(name, old, new) for name, (old, new) in rows([before, after]) if old or new]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in changes)
