"""Recurrent loops as LSTM, GRU and RNN, recognised by what they compute.

The body of a counted loop is interpreted symbolically (`lifting`), the updates of its states are
matched against the equations of the operators (`cell_matching`), a numeric probe confirms the match
(`probe`), and the operator takes the place of the loop (`fuse`).
"""

from . import lifted_operators, time_steps  # noqa: F401  they register how operators are lifted
from .absorb import (
    AbsorbInputProjection,
    AbsorbReversal,
    AbsorbReversalOfWholeSequence,
    CancelReversals,
)
from .chunks import MergeRecurrentChunks
from .fuse import FuseRecurrence
from .reroll import ConcatOfSlices, RerollRecurrence
from .unfuse import UNFUSE

__all__ = [
    "UNFUSE",
    "AbsorbInputProjection",
    "AbsorbReversal",
    "AbsorbReversalOfWholeSequence",
    "CancelReversals",
    "ConcatOfSlices",
    "FuseRecurrence",
    "MergeRecurrentChunks",
    "RerollRecurrence",
]
