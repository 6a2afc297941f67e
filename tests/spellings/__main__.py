"""Rewrites random spellings of recurrent cells and near misses, and prints what goes wrong.

python -m tests.spellings --count 500 --misses 200
"""

from __future__ import annotations

import argparse
import sys

from .cells import FLAWS
from .judge import judge


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=500, help="spellings of each operator")
    options.add_argument("--misses", type=int, default=200, help="near misses, of all operators")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    chosen = options.parse_args()
    wrong = 0
    for op in FLAWS:
        cases = [(seed, "") for seed in range(chosen.first, chosen.first + chosen.count)]
        wrong += _judged(op, cases)
    flaws = [(op, flaw) for op, found in FLAWS.items() for flaw in found]
    misses = [(*flaws[k % len(flaws)], chosen.first + k) for k in range(chosen.misses)]
    for op in FLAWS:
        wrong += _judged(op, [(seed, flaw) for other, flaw, seed in misses if other == op])
    return 1 if wrong else 0


def _judged(op: str, cases: list[tuple[int, str]]) -> int:
    wrong = 0
    for seed, flaw in cases:
        finding = judge(op, seed, flaw)
        if finding:
            wrong += 1
            sys.stdout.write(f"make_model({op!r}, {seed}, {flaw!r}): {finding}\n")
    kind = "near misses" if cases and cases[0][1] else "spellings"
    sys.stdout.write(f"{op}: {len(cases)} {kind}, {wrong} wrong\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
