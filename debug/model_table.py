"""A model before and after, as a table or a line."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..rewrite.storage.summary import ModelSummary, changed_values, compare


def before_after(before: ModelSummary, after: ModelSummary) -> list[RenderableType]:
    """Two models side by side: inputs, outputs, opset, size, and the operators that changed."""
    values = Table(box=None, pad_edge=False, show_header=False)
    for name, lines in (
        ("inputs", changed_values(before.inputs, after.inputs)),
        ("outputs", changed_values(before.outputs, after.outputs)),
    ):
        for position, line in enumerate(lines):
            values.add_row("" if position else name, Text(line))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, old, new in compare(before, after):
        is_fewer = old.isdigit() and new.isdigit() and int(new) < int(old)
        table.add_row(name, old, Text(new, style="green" if is_fewer else ""))
    return [values, "", table]
