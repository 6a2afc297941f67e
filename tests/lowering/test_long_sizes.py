"""Sizes that a model computes in many steps: written out, they would have millions of terms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from .operators.inputs import Load, random

STEPS = {
    "quotients": "t{k} = Div ({a}, three) q{k} = Add (t{k}, {a}) {b} = Sub (q{k}, one)",
    "quotients of what may be negative": """t{k} = Div ({a}, three) q{k} = Sub (five, {a})
        r{k} = Add (q{k}, t{k}) {b} = Sub (r{k}, columns)""",
    "bounds": """t{k} = Div ({a}, two) q{k} = Min (t{k}, columns) r{k} = Max (q{k}, two)
        {b} = Add (r{k}, {a})""",
    "negative bounds": """t{k} = Sub ({a}, columns) q{k} = Min (t{k}, five) r{k} = Sub (q{k}, three)
        {b} = Add (r{k}, {a})""",
    "minima of what may be negative": """t{k} = Sub ({a}, one) q{k} = Sub (columns, hundred)
        {b} = Min (t{k}, q{k})""",
    "remainders": "t{k} = Mul ({a}, three) q{k} = Mod (t{k}, hundred) {b} = Add (q{k}, columns)",
    "int32": """t{k} = Div ({a}, three) q{k} = Cast <to = 6> (t{k}) p{k} = Cast <to = 6> (five)
        r{k} = Add (q{k}, p{k}) s{k} = Cast <to = 7> (r{k}) {b} = Add (s{k}, {a})""",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_size_in_many_steps(step: str, imported: Load) -> None:
    steps = [STEPS[step].format(a=f"v{k}", b=f"v{k + 1}", k=k) for k in range(16)]
    model = imported(f"""g (float[n, m] x) => (int64 result, float[?] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 three = {{3}}, int64 five = {{5}},
     int64 hundred = {{100}}, int64[1] axis = {{0}}> {{
        shape = Shape (x) v0 = Gather (shape, zero) columns = Gather (shape, one)
        {" ".join(steps)}
        result = Identity (v16)
        absolute = Abs (v16) small = Mod (absolute, hundred) sizes = Unsqueeze (small, axis)
        y = ConstantOfShape (sizes)
    }}""")
    for sizes in ((1, 1), (0, 3), (3, 0), (7, 5), (4, 50)):
        model.check(random(*sizes))


def test_many_tensors_that_broadcast(imported: Load) -> None:
    """Each result has the size of the one before, or that of `w` where it is 1."""
    steps = [f"v{k + 1} = Where (c, v{k}, w)" for k in range(12)]
    model = imported(f"""g (float[n] v0, float[m] w, bool[k] c) => (float[?] y) {{
        {" ".join(steps)} y = Neg (v12) }}""")
    for n, m, k in ((1, 1, 1), (4, 1, 4), (1, 5, 1), (1, 1, 3), (6, 6, 6), (0, 1, 1)):
        model.check(random(n), random(m), np.arange(k) % 2 == 0)


def _quotients(first: str, last: str) -> str:
    """16 steps from one scalar to another."""
    names = [first, *(f"{last}{k}" for k in range(15)), last]
    return " ".join(
        f"{b}_q = Div ({a}, three) {b}_s = Add ({b}_q, {a}) {b} = Sub ({b}_s, one)"
        for a, b in itertools.pairwise(names)
    )


IN_BODIES = f"""g (float[n, m] x, bool c, int64 count) => (int64 y, float[?] z, int64 w, int64 last)
<int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}}, int64 hundred = {{100}},
 int64[1] axis = {{0}}> {{
    shape = Shape (x) rows = Gather (shape, zero)
    y, z = If (c) <
        then_branch = yes () => (int64 yes_y, float[?] yes_z) {{
            {_quotients("rows", "a")} yes_y = Identity (a) a_m = Mod (a, hundred)
            a_u = Unsqueeze (a_m, axis) yes_z = ConstantOfShape (a_u) }},
        else_branch = no () => (int64 no_y, float[?] no_z) {{
            {_quotients("rows", "b")} no_y = Sub (b, rows) b_m = Mod (b, hundred)
            b_u = Unsqueeze (b_m, axis) no_z = ConstantOfShape (b_u) }}
    >
    {_quotients("rows", "w")}
    last = Loop (count, "", w) <
        body = step (int64 i, bool go, int64 state) => (bool goes, int64 next) {{
            goes = Identity (go) {_quotients("rows", "e")}
            sum = Add (state, e) more = Add (sum, w) next = Mod (more, hundred) }}
    >
}}"""
"""The same size in both branches, after them and in the body of a loop, which also captures it."""


def test_a_size_in_many_steps_in_bodies(imported: Load) -> None:
    model = imported(IN_BODIES)
    for rows, condition, count in ((1, True, 0), (4, False, 3), (9, True, 2), (9, False, 1)):
        model.check(random(rows, 2), np.array(condition), np.array(count))


def test_an_integer_that_is_too_large_for_a_size(imported: Load) -> None:
    """The run fails; what is known of sizes does not hold for such integers."""
    text = f"""g (float[n, m] x) => (int64 y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}}, int64 factor = {{FACTOR}}> {{
        shape = Shape (x) rows = Gather (shape, zero) many = Mul (rows, factor)
        {_quotients("many", "y")} }}"""
    imported(text.replace("FACTOR", "1000")).check(random(7, 1))
    large = imported(text.replace("FACTOR", str(2**46)))
    with pytest.raises(RuntimeError, match="mismatch"):
        large.run(random(7, 1))


def test_sizes_in_long_vectors(imported: Load) -> None:
    """Written out, the vector would have 4 million elements."""
    steps = " ".join(f"v{k + 1} = Concat <axis = 0> (v{k}, v{k})" for k in range(21))
    model = imported(f"""g (float[n, m] x) => (int64[4194304] y) {{
        v0 = Shape (x) {steps} y = Neg (v21) }}""")
    model.check(random(3, 5))
