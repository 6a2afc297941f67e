"""Recurrent loops as LSTM, GRU and RNN operators, recognised by what they compute."""

from .absorb import AbsorbInputProjection
from .direction import AbsorbReversal, AbsorbReversalOfWholeSequence
from .fuse import FuseRecurrence
from .join_slices import ConcatOfSlices
from .reroll import RerollRecurrence
from .split_state import SplitCarriedValue
from .unfuse import UNFUSE

__all__ = [
    "UNFUSE",
    "AbsorbInputProjection",
    "AbsorbReversal",
    "AbsorbReversalOfWholeSequence",
    "ConcatOfSlices",
    "FuseRecurrence",
    "RerollRecurrence",
    "SplitCarriedValue",
]
