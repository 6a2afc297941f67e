"""Reports a wrong rewrite with a small reproducer."""

from __future__ import annotations

import re

import onnx

from .check_rewrite import check_rewrite, is_valid, reproducer
from .loops import make_feeds, make_model
from .shrink import shrink


def explained(seed: int, findings: list[str]) -> str:
    """A script with the smallest model found that shows the same fault."""
    feeds, kind = make_feeds(seed), _fault(findings[0])

    def fails(model: onnx.ModelProto) -> bool:
        # A smaller model may have an endless loop.
        found = check_rewrite(model, feeds, seconds=0.1) if is_valid(model) else []
        return any(_fault(finding) == kind for finding in found)

    small = shrink(make_model(seed), fails)
    return f"seed {seed}\n{reproducer(small, check_rewrite(small, feeds) or findings, seed)}"


def _fault(finding: str) -> str:
    """The fault without the names and numbers of the model; for a wrong value, only the output."""
    if finding.startswith("output "):
        return finding.partition(":")[0]
    return re.sub(r"""(['"`]).*?\1|\d+|\(.*""", "", finding)[:100]
