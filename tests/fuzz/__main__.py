"""Rewrites random models with loops and prints a reproducer for every wrong result.

python -m tests.fuzz --count 5000 --first 0
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .check_rewrite import check_rewrite
from .loops import make_feeds, make_model
from .report import explained


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=5000, help="number of models")
    options.add_argument("--first", type=int, default=0, help="seed of the first model")
    chosen = options.parse_args()
    tally: Counter[str] = Counter()
    wrong: list[int] = []
    started = time.perf_counter()
    for number, seed in enumerate(range(chosen.first, chosen.first + chosen.count), start=1):
        findings = check_rewrite(make_model(seed), make_feeds(seed), tally)
        if findings:
            wrong.append(seed)
            _say(f"\n# {explained(seed, findings)}")
        progress = f"{number} of {chosen.count} models, {len(wrong)} wrong"
        sys.stderr.write(f"\r{progress}, {time.perf_counter() - started:.0f} s")
    sys.stderr.write("\n")
    for key in sorted(tally):
        _say(f"{tally[key]:8d} {key}")
    _say(f"wrong: {wrong}" if wrong else "nothing wrong")
    return 1 if wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
