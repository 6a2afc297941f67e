"""Rewrites random models and prints a test for every wrong result.

python -m tests.fuzz --seconds 3600 runs on all cores; it goes on where it ended before.
python -m tests.fuzz --first 17 --count 1 checks one seed in this process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from .campaign import State, run_campaign
from .cases import RULES
from .report import check_seed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=600, help="how long to run")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options.add_argument("--tvm", type=int, default=20, help="one model of so many also on TVM")
    options.add_argument("--state", type=Path, default=Path("build/fuzz"), help="where to go on")
    options.add_argument("--first", type=int, default=0, help="the first seed, with --count")
    options.add_argument("--count", type=int, help="check so many models in this process")
    chosen = options.parse_args()
    if chosen.count is not None:
        return _check_here(chosen.first, chosen.count, chosen.tvm)
    state = State.load(chosen.state)
    run_campaign(state, chosen.seconds, chosen.jobs, chosen.tvm, _say)
    _summarise(state.tally)
    _say(f"wrong: {sorted(state.wrong)}" if state.wrong else "nothing wrong")
    return 1 if state.wrong else 0


def _check_here(first: int, count: int, every_on_tvm: int) -> int:
    tally: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        on_tvm = every_on_tvm > 0 and seed % every_on_tvm == 0
        found = check_seed(seed, tally, on_tvm=on_tvm)
        if found:
            wrong.append(seed)
            _say(f"\n# seed {seed}\n{found.test()}")
            _say(f"\n# seed {seed}, smaller\n{found.shrunk().test()}")
    _summarise(tally)
    _say(f"wrong: {wrong}" if wrong else "nothing wrong")
    return 1 if wrong else 0


def _summarise(tally: Counter[str]) -> None:
    for key in sorted(tally):
        _say(f"{tally[key]:8d} {key}")
    never = [rule.name() for rule in RULES if not tally[f"rule {rule.name()}"]]
    if never and tally["models"] >= 1000:
        _say(f"rules that never fired: {', '.join(never)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
