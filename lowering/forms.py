"""What became of the nodes that iterate: a kernel with the loop inside, or calls of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""Operators that iterate without a body."""


@dataclass(frozen=True)
class Form:
    """What became of one Loop, Scan, LSTM, GRU or RNN."""

    op_type: str
    place: str
    """The node, for messages."""
    reason: str = ""
    """Why it stays functions that the virtual machine runs; empty if it is one kernel."""

    @property
    def is_kernel(self) -> bool:
        """Whether one kernel computes all iterations."""
        return not self.reason


Hear = Callable[[Form], None]
"""Is told of every form once the module is complete, in the order of emission."""
