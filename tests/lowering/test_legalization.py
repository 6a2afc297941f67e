"""Calls of one type share a kernel that is made once, and only where it computes the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tvm import relax

from looplift.lowering.scheduling import legalization
from looplift.lowering.scheduling.legalization import legalize_operators

from .compiled import Array, Compiled
from .conftest import parse


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often TVM makes a kernel for each operator."""
    count: Counter[str] = Counter()
    functions = legalization._legalizations()

    def counted(name: str) -> Any:
        def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
            count[name] += 1
            return functions[name](bb, call)

        return legalize

    replaced = {name: counted(name) for name in functions}
    monkeypatch.setattr(legalization, "_legalizations", lambda: replaced)
    return count


def run(body: str, **feed: Array) -> list[Array]:
    """The outputs of a graph of float tensors x and y, both [n, 3]."""
    return Compiled(parse(f"g (float[n, 3] x, float[n, 3] y) => {body}"))(feed)


X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
Y = np.array([[5, -1, 2], [3, 0, 7]], np.float32)


def test_a_kernel_is_made_once_for_calls_of_a_type(made: Counter[str]) -> None:
    outputs = run("(float[n, 3] z) { a = Sub (x, y) b = Sub (y, a) z = Sub (b, x) }", x=X, y=Y)
    np.testing.assert_array_equal(outputs[0], Y - (X - Y) - X)
    assert made["relax.subtract"] == 1


def test_operands_that_are_equal_take_another_kernel(made: Counter[str]) -> None:
    body = "(float[n, 3] p, float[n, 3] q, float[n, 3] r)"
    outputs = run(f"{body} {{ p = Mul (x, x) q = Mul (x, y) r = Mul (y, y) }}", x=X, y=Y)
    for got, wanted in zip(outputs, (X * X, X * Y, Y * Y), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert made["relax.multiply"] == 2


def test_numbers_are_written_into_kernels(made: Counter[str]) -> None:
    body = "(float[n, 3] p, float[n, 3] q, float[n, 3] r)"
    numbers = "two = Constant <value_float = 2.0> () six = Constant <value_float = 6.0> ()"
    products = "p = Mul (x, two) q = Mul (y, six) r = Mul (y, two)"
    outputs = run(f"{body} {{ {numbers} {products} }}", x=X, y=Y)
    for got, wanted in zip(outputs, (X * 2, Y * 6, Y * 2), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert made["relax.multiply"] == 2


def test_attributes_and_numbers_of_operands_tell_calls_apart(made: Counter[str]) -> None:
    body = "(p, q, r, s)"
    concatenations = "p = Concat <axis = 1> (x, y) q = Concat <axis = 0> (x, y)"
    more = "r = Concat <axis = 1> (x, y, x) s = Concat <axis = 1> (y, x)"
    text = f"{body} {{ {concatenations} {more} }}".replace(
        "(p, q, r, s)", "(float[n, 6] p, float[m, 3] q, float[n, 9] r, float[n, 6] s)"
    )
    outputs = run(text, x=X, y=Y)
    wanted = [np.concatenate(a, k) for a, k in (((X, Y), 1), ((X, Y), 0), ((X, Y, X), 1))]
    for got, want in zip(outputs, [*wanted, np.concatenate((Y, X), 1)], strict=True):
        np.testing.assert_array_equal(got, want)
    assert made["relax.concat"] == 3


def test_calls_whose_sizes_come_from_data_keep_their_own() -> None:
    """The sizes of each are computed beside its kernel."""
    bb = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType([8], "float32"))
    places = [relax.Var(name, relax.TensorType([1], "int64")) for name in ("a", "b", "one")]
    with bb.function("main", [data, *places]):
        first, second, one = places
        ranges = ((first, second), (second, first))
        cuts = [relax.op.dynamic_strided_slice(data, *ends, one) for ends in ranges]
        bb.emit_func_output(relax.Tuple([bb.emit(cut) for cut in cuts]))
    main = legalize_operators()(bb.get())["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    types = [binding.var.ty for binding in bindings]
    cuts = [t for t in types if isinstance(t, relax.TensorType) and str(t.dtype) == "float32"]
    first_size, second_size = (cut.shape.values[0] for cut in cuts)
    assert not first_size.same_as(second_size)
