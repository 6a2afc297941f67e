"""Sizes that a model computes in many steps: written out, they would have millions of terms."""

from __future__ import annotations

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
