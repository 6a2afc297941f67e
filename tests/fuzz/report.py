"""What a person needs to see a wrong rewrite again."""

from __future__ import annotations

import onnx

from .judge import is_valid, judge, reproducer
from .loops import make_feeds, make_model
from .shrink import shrink


def explained(seed: int, findings: list[str]) -> str:
    """A script with a model that is as small as can be found and shows the same fault."""
    feeds = make_feeds(seed)
    # The first words name the fault and, for a wrong value, the output.
    kind = findings[0][:14]

    def fails(model: onnx.ModelProto) -> bool:
        # A smaller model may have a loop that does not end.
        found = judge(model, feeds, seconds=0.1) if is_valid(model) else []
        return any(finding.startswith(kind) for finding in found)

    small = shrink(make_model(seed), fails)
    return f"seed {seed}\n{reproducer(small, judge(small, feeds) or findings, seed)}"
