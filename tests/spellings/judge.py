"""Checks that a spelling is fused, or a near miss is not, and that all runs agree."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx

from looplift import rewrite
from looplift.rewrite.storage.summary import count_operators

from ..equivalence import outcome, session
from .models import make_feeds, make_model

LOOPS = ("Loop", "Scan")
OPERATORS = ("LSTM", "GRU", "RNN")
TOLERANCE = 2e-5


def judge(op: str, seed: int, flaw: str = "") -> str:
    """What is wrong: empty if the cell was fused (with a flaw: was not) and all runs agree."""
    model = make_model(op, seed, flaw)
    result = rewrite(model)
    if result.report.defects:
        return f"defect: {result.report.defects}"
    counts = Counter(count_operators(result.model))
    fused = sum(counts[name] for name in OPERATORS)
    if flaw and fused:
        return f"fused in spite of '{flaw}'"
    if not flaw and (counts[op] != 1 or fused != 1 or any(counts[loop] for loop in LOOPS)):
        return f"not fused: {dict(counts)}"
    return _difference(model, result.model, seed)


def _difference(before: onnx.ModelProto, after: onnx.ModelProto, seed: int) -> str:
    original, rewritten = session(before), session(after)
    for feed in make_feeds(before, seed):
        expected, actual = outcome(original, feed), outcome(rewritten, feed)
        shapes = {name: array.shape for name, array in feed.items()}
        if expected is None or actual is None:
            return f"fails with {shapes}"
        for left, right in zip(expected, actual):
            if left.shape != right.shape or not np.allclose(left, right, TOLERANCE, TOLERANCE):
                return f"differs with {shapes}"
    return ""
