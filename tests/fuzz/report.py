"""Reports a wrong rewrite with a small test that shows it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from .cases import make_case, make_feeds
from .check_rewrite import Feed, check_rewrite, is_valid, reproducer
from .shrink import shrink

Check = Callable[[onnx.ModelProto, Sequence[Feed], "Counter[str]"], list[str]]


def findings_of(seed: int, tally: Counter[str], *, on_tvm: bool = False) -> str:
    """Checks the model of a seed; a test with the smallest model that shows what is wrong, or ""."""
    case = make_case(seed)
    tally["models"] += 1
    tally[f"models of {case.kind}"] += 1
    feeds = make_feeds(case.model, seed)
    check: Check = check_rewrite
    findings = check(case.model, feeds, tally)
    if on_tvm and not findings:
        from .check_lowering import check_lowering

        check = check_lowering
        findings = check(case.model, feeds, tally)
    return explained(case.model, seed, findings, check) if findings else ""


def explained(
    model: onnx.ModelProto, seed: int, findings: list[str], check: Check = check_rewrite
) -> str:
    """A test with the smallest model found that shows the same fault."""
    kind = _fault(findings[0])

    def found(smaller: onnx.ModelProto, **options: Any) -> list[str]:
        return check(smaller, make_feeds(smaller, seed), Counter(), **options)

    # A smaller model may have an endless loop.
    options = {"seconds": 0.1} if check is check_rewrite else {}

    def fails(smaller: onnx.ModelProto) -> bool:
        return is_valid(smaller) and any(_fault(f) == kind for f in found(smaller, **options))

    small = shrink(model, fails)
    return reproducer(small, found(small) or findings, seed, check.__name__)


def _fault(finding: str) -> str:
    """The fault without the names and numbers of the model; for a wrong value, only the output."""
    if finding.startswith("output "):
        return finding.partition(":")[0]
    return re.sub(r"""(['"`]).*?\1|\d+|\(.*""", "", finding)[:100]
