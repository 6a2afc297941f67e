"""Reports a wrong rewrite with a small test that shows it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from .cases import make_case, make_feeds
from .check_rewrite import check_rewrite, is_valid, reproducer
from .shrink import shrink

Check = Callable[..., list[str]]


@dataclass(frozen=True)
class Wrong:
    """A model with findings."""

    seed: int
    model: onnx.ModelProto
    findings: list[str]
    check: Check

    def test(self) -> str:
        """A test that shows the findings."""
        return reproducer(self.model, self.findings, self.seed, self.check.__name__)

    def shrunk(self) -> Wrong:
        """The smallest model found that shows the same fault."""
        kind = _fault(self.findings[0])
        # A smaller model may have an endless loop.
        options = {"seconds": 0.1} if self.check is check_rewrite else {}

        def found(smaller: onnx.ModelProto, **options: Any) -> list[str]:
            return self.check(smaller, make_feeds(smaller, self.seed), Counter(), **options)

        def fails(smaller: onnx.ModelProto) -> bool:
            return is_valid(smaller) and any(_fault(f) == kind for f in found(smaller, **options))

        small = shrink(self.model, fails)
        return Wrong(self.seed, small, found(small) or self.findings, self.check)


def check_seed(seed: int, tally: Counter[str], *, on_tvm: bool = False) -> Wrong | None:
    """Checks the model of a seed; None if nothing is wrong."""
    case = make_case(seed)
    tally["models"] += 1
    tally[f"models of {case.kind}"] += 1
    feeds = make_feeds(case.model, seed)
    findings = check_rewrite(case.model, feeds, tally)
    if findings:
        return Wrong(seed, case.model, findings, check_rewrite)
    if on_tvm:
        from .check_lowering import check_lowering

        findings = check_lowering(case.model, feeds, tally)
        if findings:
            return Wrong(seed, case.model, findings, check_lowering)
    return None


def _fault(finding: str) -> str:
    """The fault without the names and numbers of the model; for a wrong value, only the output."""
    if finding.startswith("output "):
        return finding.partition(":")[0]
    return re.sub(r"""(['"`]).*?\1|\d+|\(.*""", "", finding)[:100]
