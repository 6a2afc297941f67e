"""Checks the models of some seeds and prints JSON: a line for each, and one more for a smaller
model that is wrong.

python -m tests.fuzz.worker FIRST COUNT TVM
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections import Counter

from .cases import make_case, make_feeds
from .check_rewrite import runs_of
from .report import check_seed


def main(first: int, count: int, every_on_tvm: int) -> None:
    """With a count of 0, runs only the original model of the first seed."""
    faulthandler.enable()
    if not count:
        model = make_case(first).model
        runs_of(model, make_feeds(model, first))
    for seed in range(first, first + count):
        tally: Counter[str] = Counter()
        on_tvm = every_on_tvm > 0 and seed % every_on_tvm == 0
        wrong = check_seed(seed, tally, on_tvm=on_tvm)
        _print(seed=seed, tally=tally, test=wrong.test() if wrong else "", shrinks=bool(wrong))
        if wrong:  # A smaller model may end the process.
            _print(seed=seed, tally={}, test=wrong.shrunk().test(), shrinks=False)


def _print(**result: object) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
