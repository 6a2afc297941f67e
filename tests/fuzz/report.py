"""What a person needs to see a wrong rewrite again."""

from __future__ import annotations

import re

import onnx

from .judge import is_valid, judge, reproducer
from .loops import make_feeds, make_model
from .shrink import shrink


def explained(seed: int, findings: list[str]) -> str:
    """A script with a model that is as small as can be found and shows the same fault."""
    feeds, kind = make_feeds(seed), _fault(findings[0])

    def fails(model: onnx.ModelProto) -> bool:
        # A smaller model may have a loop that does not end.
        found = judge(model, feeds, seconds=0.1) if is_valid(model) else []
        return any(_fault(finding) == kind for finding in found)

    small = shrink(make_model(seed), fails)
    return f"seed {seed}\n{reproducer(small, judge(small, feeds) or findings, seed)}"


def _fault(finding: str) -> str:
    """The words that say what is wrong, without the names and numbers of the one model.

    Of a wrong value only that it is wrong, and of which output.
    """
    if finding.startswith("output "):
        return finding.partition(":")[0]
    return re.sub(r"""(['"`]).*?\1|\d+|\(.*""", "", finding)[:100]
