"""Calls of one type share a kernel that is made once, and only where it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax, te

from looplift.lowering.scheduling.legalization import legalize
from looplift.lowering.scheduling.legalization.legalize import legalize_operators

from ...compiled import Array, Compiled, compile_quickly, virtual_machine
from ...conftest import parse


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often TVM makes a kernel for each operator."""
    count: Counter[str] = Counter()
    functions = legalize._legalizations()

    def counted(name: str) -> Any:
        def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
            count[name] += 1
            return functions[name](bb, call)

        return legalize

    replaced = {name: counted(name) for name in functions}
    monkeypatch.setattr(legalize, "_legalizations", lambda: replaced)
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


def test_attributes_and_tuples_tell_calls_apart(made: Counter[str]) -> None:
    outputs = run(
        """(float[n, 3] p, float[n, 3] q, float[n, 6] r, float[n, 9] s, float[n, 6] t) {
            p = LeakyRelu <alpha = 0.5> (x)
            q = LeakyRelu <alpha = 0.25> (x)
            r = Concat <axis = 1> (x, y)
            s = Concat <axis = 1> (x, y, x)
            t = Concat <axis = 1> (y, x)
        }""",
        x=X,
        y=Y,
    )
    leaky = [np.where(X < 0, X * np.float32(slope), X) for slope in (0.5, 0.25)]
    joined = [np.concatenate(parts, 1) for parts in ((X, Y), (X, Y, X), (Y, X))]
    for got, wanted in zip(outputs, [*leaky, *joined], strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert made["relax.nn.leakyrelu"] == 2
    assert made["relax.concat"] == 2


def test_symbolic_sizes_tell_calls_apart(made: Counter[str]) -> None:
    model = parse(
        """g (float[n, 3] x, float[m, 3] y) => (float[n, 3] p, float[m, 3] q) {
            p = Neg (x)
            q = Neg (y)
        }"""
    )
    outputs = Compiled(model)({"x": X, "y": Y[:1]})
    np.testing.assert_array_equal(outputs[0], -X)
    np.testing.assert_array_equal(outputs[1], -Y[:1])
    assert made["relax.negative"] == 2


def _legalized(calls: Callable[[Sequence[Any]], Sequence[Any]], *params: Any) -> list[Any]:
    """The types of the bindings in a function of legalized calls."""
    bb = relax.BlockBuilder()
    with bb.function("main", list(params)):
        bb.emit_func_output(relax.Tuple([bb.emit(call) for call in calls(params)]))
    main = legalize_operators()(bb.get())["main"]
    return [binding.var.ty for block in main.body.blocks for binding in block.bindings]


def test_calls_with_data_dependent_sizes_do_not_share_a_kernel() -> None:
    """Statements before each call compute its output size."""
    data = relax.Var("data", relax.TensorType([8], "float32"))
    places = [relax.Var(name, relax.TensorType([1], "int64")) for name in ("a", "b", "one")]

    def slices(params: Sequence[Any]) -> list[Any]:
        of, first, second, one = params
        ranges = ((first, second), (second, first))
        return [relax.op.dynamic_strided_slice(of, *ends, one) for ends in ranges]

    types = _legalized(slices, data, *places)
    found = [t for t in types if isinstance(t, relax.TensorType) and str(t.dtype) == "float32"]
    first_size, second_size = (kind.shape.values[0] for kind in found)
    assert not first_size.same_as(second_size)


def test_a_kernel_with_the_value_of_a_constant_is_not_shared(
    made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_first(bb: relax.BlockBuilder, call: Any) -> Any:
        made["relax.add"] += 1
        number = float(call.args[1].value.numpy()[0])
        return bb.call_te(lambda x: te.compute(x.shape, lambda i: x[i] + number), call.args[0])

    monkeypatch.setattr(legalize, "_legalizations", lambda: {"relax.add": add_first})

    def sums(params: Sequence[Any]) -> list[Any]:
        return [relax.op.add(params[0], relax.const(np.full(4, k, "f4"))) for k in (1, 2)]

    _legalized(sums, relax.Var("data", relax.TensorType([4], "float32")))
    assert made["relax.add"] == 2


def test_a_product_of_stacks_whose_equal_sizes_are_computed_in_two_ways() -> None:
    """TVM does not prove that the sizes are equal; the type of the product says so."""
    n = tvm.tirx.Var("n", "int64")
    sizes = [tvm.tirx.max((size + 63) // 64, 1) for size in (tvm.tirx.max(n, 0), n)]
    x, y = (
        relax.Var(name, relax.TensorType([size, 3, 3], "float32"))
        for name, size in zip("xy", sizes)
    )
    bb = relax.BlockBuilder()
    of_n = relax.Var("of_n", relax.TensorType([n], "float32"))
    with bb.function("main", [of_n, x, y], private=False):
        with bb.dataflow():
            product = relax.op.matmul(x, y)
            kind = relax.TensorType([sizes[0], 3, 3], "float32")
            call = ir.Call(product.op, product.args, product.attrs, [], ret_ty=kind)
            variable = relax.Var("product", kind)
            bb.emit_normalized(relax.VarBinding(variable, call))
            result = bb.emit_output(relax.op.negative(variable))
        bb.emit_func_output(result)
    machine = virtual_machine(compile_quickly(bb.get(), relax_pipeline="looplift"))
    for count in (0, 1, 100):
        stacks = np.random.default_rng(count).standard_normal((2, max(-(-count // 64), 1), 3, 3))
        left, right = stacks.astype(np.float32)
        given = (np.zeros(count, np.float32), left, right)
        got = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
        np.testing.assert_allclose(got, -(left @ right), rtol=0, atol=1e-5)
