"""Recurrent loops as LSTM, GRU and RNN operators, recognised by what they compute."""

from .absorb import AbsorbLinear
from .direction import ReverseDirection, ReverseWhole
from .fuse import FuseRecurrence
from .join_slices import JoinSlices
from .reroll import Reroll
from .split_state import SplitState
from .unfuse import UNFUSE

__all__ = [
    "UNFUSE",
    "AbsorbLinear",
    "FuseRecurrence",
    "JoinSlices",
    "Reroll",
    "ReverseDirection",
    "ReverseWhole",
    "SplitState",
]
