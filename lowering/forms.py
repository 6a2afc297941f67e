"""The forms of nodes that iterate: one kernel with the loop inside, or calls of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""Operators that iterate without a body."""


@dataclass(frozen=True)
class Form:
    """The form of one Loop, Scan, LSTM, GRU or RNN in a compiled module."""

    op_type: str
    place: str
    """The node, for messages."""
    reason: str = ""
    """Why the virtual machine runs its iterations; empty if it is one kernel."""

    @property
    def is_kernel(self) -> bool:
        """Whether one kernel computes all iterations."""
        return not self.reason


OnForm = Callable[[Form], None]
"""A callback for each form, in the order of emission, once the module is complete."""
