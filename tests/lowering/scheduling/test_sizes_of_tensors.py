"""The sizes of tensors that a model recomputes, and the order in which it computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import tvm
from tvm import relax, tirx

import looplift
from looplift.lowering.bodies import SIZE_OPERATORS, read_body
from looplift.lowering.derived_sizes import DerivedSizes
from looplift.lowering.operators import Accepts, find
from looplift.rewrite.storage.model import read_model

from ..compiled import NATIVE, virtual_machine

N = tirx.Var("n", "int64")
M = tirx.Var("m", "int64")


def floordiv(left: Any, right: Any) -> Any:
    return tirx.floordiv(left, right)


def having(*sizes: Any, is_of_windows: bool = True) -> DerivedSizes:
    derived = DerivedSizes()
    value = relax.Var("x", relax.TensorType(list(sizes), "float32"))
    derived.learn(value, is_of_windows=is_of_windows)
    return derived


@pytest.mark.parametrize("shift", [-4, -1, 0, 3, 8])
def test_quotients_that_differ_by_a_number(shift: int) -> None:
    """One that may be negative beside a column, as (n - 3) // 2 for n = 2, stays apart."""
    derived = having(floordiv(N - 1, 2) + 1)
    found = derived.floor_quotient(N - 1 + 2 * shift, tirx.IntImm("int64", 2))
    if shift < 0:
        assert found is None
        return
    assert tvm.sym.Analyzer().can_prove_equal(found, floordiv(N - 1, 2) + shift)


@pytest.mark.parametrize(
    ("left", "right"),
    [(N, 2), (N - 1, 4), (M - 1, 2), (N - 1, M), (1 - N, 2)],
)
def test_other_quotients(left: Any, right: Any) -> None:
    derived = having(floordiv(N - 1, 2) + 1)
    divisor = tirx.IntImm("int64", right) if isinstance(right, int) else right
    assert derived.floor_quotient(left, divisor) is None


def test_only_windows_round_down() -> None:
    derived = having(floordiv(N - 1, 2) + 1, is_of_windows=False)
    assert derived.floor_quotient(N - 1, tirx.IntImm("int64", 2)) is None


def test_the_strongest_bound_of_a_quotient_holds() -> None:
    quotient = floordiv(N - 400, 320)
    for sizes in ((quotient - 5, quotient + 9), (quotient + 9, quotient - 5)):
        derived = having(*sizes)
        assert derived.is_nonnegative(quotient * 2 - 9)
        assert not derived.is_nonnegative(quotient - 6)
        assert not derived.is_nonnegative(5 - quotient)


def test_a_size_of_two_quotients_bounds_neither() -> None:
    derived = having(floordiv(N - 9, 2) + floordiv(M - 9, 2))
    assert not derived.is_nonnegative(floordiv(N - 9, 2))


@pytest.mark.parametrize("operator", sorted(SIZE_OPERATORS))
def test_operators_on_sizes_keep_them_symbolic(operator: str) -> None:
    converter = find("", operator)
    assert converter is not None
    assert converter.accepts & Accepts.SIZES or converter.accepts & Accepts.SCALARS


def order(text: str) -> list[str]:
    graph = read_model(onnx.parser.parse_model(text)).graph
    return [step.node.op for step in read_body(graph).steps]


def test_sizes_wait_for_their_first_reader() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x) => (float[n] y, int64[1] b) {
        a = Shape (x) b = Add (a, a) c = Mul (a, b) d = Mul (b, b)
        e = Exp (x) f = Sin (e) y = Expand (f, c)
    }"""
    assert order(text) == ["Exp", "Sin", "Shape", "Add", "Mul", "Expand", "Mul"]


def test_a_body_reads_the_sizes_that_it_captures() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, bool p) => (float[m] y) {
        a = Shape (x) b = Add (a, a) c = Mul (a, a)
        e = If (p) <
            then_branch = t () => (float[m] u) { u = Expand (x, a) },
            else_branch = f () => (float[m] v) { v = Expand (x, c) }
        >
        y = Expand (e, b)
    }"""
    assert order(text) == ["Shape", "Mul", "If", "Add", "Expand"]


def test_a_long_size_gets_a_symbol() -> None:
    """Equal sizes get the same one, and a run computes it."""
    pieces = ", ".join(f"p{k}" for k in range(26))
    nodes = " ".join(
        f"m{k} = MaxPool <kernel_shape = [{k + 2}], strides = [{k + 2}]> (x) p{k} = Exp (m{k})"
        for k in range(26)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 1, n] x) => (float[1, 1, m] y) {{
        {nodes}
        a = Concat <axis = 2> ({pieces})
        b = Sin (a)
        c = Concat <axis = 2> ({pieces})
        y = Add (b, c)
    }}""")
    module = looplift.from_onnx(model)
    script = module["main"].script()
    assert 'R.Tensor((1, 1, size), dtype="float32") = R.add' in script
    assert "T.Select" not in script
    main = virtual_machine(looplift.compile(module, NATIVE))["main"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in (27, 60):
        x = np.random.default_rng(0).standard_normal((1, 1, length)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(main(tvm.runtime.tensor(x)).numpy(), wanted, rtol=1e-5)
