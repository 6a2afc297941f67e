"""`looplift.from_onnx` takes the arguments of TVM's importer, and does with them what it does."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as stock

import looplift
from looplift import AssumptionError, LoopliftError, UnsupportedError
from looplift.lowering import emit
from looplift.lowering.weights import lift_weights
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match, Phase, Rule
from looplift.rewrite.graph.ir import Tensor
from looplift.rewrite.storage.redeclare import redeclare

from ..rules.recurrence.cell_models import numbers
from ..samples import one_of
from ..small_models import MASKED_RNN
from ..small_models import parse as small

HEADER = '<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>\n'

BRANCH = """
g (float[2, 3] x, bool c) => (float[2, 3] y) {
    v = If (c) <
        then_branch = t () => (float[2, 3] a) { a = Add(x, x) },
        else_branch = e () => (float[2, 3] b) { b = Mul(x, x) }
    >
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    s = Shape(x) k = Slice(s, zero, one) f = Cast <to = 1> (k) y = Mul(v, f)
}"""

OPEN_BATCH = f"""g (float[T,B,2] x, float[B,3] h0, float[B,3] c0) => (float[T,B,3] y)
    <float[2,12] w = {{{numbers(24, 0.0)}}}, float[3,12] r = {{{numbers(36, 1.0)}}}> {{
    h, c, y = Scan <num_scan_inputs = 1, body = cell (float[B,3] h1, float[B,3] c1, float[B,2] xt)
        => (float[B,3] h2, float[B,3] c2, float[B,3] row) {{
        p = MatMul(xt, w) q = MatMul(h1, r) a = Add(p, q) i, f, g, o = Split<axis=1>(a)
        si = Sigmoid(i) sf = Sigmoid(f) tg = Tanh(g) so = Sigmoid(o)
        fc = Mul(sf, c1) ig = Mul(si, tg) c2 = Add(fc, ig) tc = Tanh(c2) h2 = Mul(so, tc)
        row = Identity(h2) }}> (h0, c0, x) }}"""
"""An LSTM, on which onnxruntime crashes for an empty batch."""


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def run(module: Any, *inputs: Any, target: str = "llvm") -> list[Any]:
    machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
    given = [tvm.runtime.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs]
    outputs = machine["main"](*given)
    return [each.numpy() for each in ([outputs] if hasattr(outputs, "numpy") else outputs)]


def calls(function: Any) -> list[str]:
    """The operators that a function calls, in order."""
    found: list[str] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Call):
            found.append(getattr(expression.op, "name", type(expression.op).__name__))

    relax.analysis.post_order_visit(function.body, visit)
    return found


class TestRewriting:
    def test_rules_run_without_control_flow(self) -> None:
        module = looplift.from_onnx(
            parse("""g (float[4, 8] x) => (float[n, m] y)
            <int64[2] a = {2, 4}, int64[2] b = {1, 2}> { c = Pow(a, b) y = Reshape(x, c) }""")
        )
        assert calls(module["main"]) == ["relax.reshape"]

    def test_a_model_that_cannot_be_rewritten_is_imported(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
        with caplog.at_level(logging.WARNING, "looplift"):
            module = looplift.from_onnx(model)
        assert calls(module["main"]) == ["relax.negative"]
        assert "imported as it is, because it cannot be rewritten" in caplog.text
        assert "int32" in caplog.text

    def test_a_model_that_cannot_be_imported_is_not_said_to_be(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = parse("g (float16[2] x, float[2] w) => (float[2] y) { y = Mul(x, w) }")
        with caplog.at_level(logging.WARNING, "looplift"), pytest.raises(LoopliftError):
            looplift.from_onnx(model)
        assert "imported as it is" not in caplog.text

    def test_an_assertion_is_not_dropped_with_the_rewrite(self) -> None:
        model = parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
        with pytest.raises(LoopliftError, match="int32"):
            looplift.from_onnx(model, dims={"n": 2})

    def test_the_rewrite_may_be_for_an_engine(self) -> None:
        """As with `looplift import --for`."""
        operators = []
        for engine in (None, "openvino"):
            forms: list[Any] = []
            looplift.from_onnx(small(MASKED_RNN), engine=engine, on_form=forms.append)
            operators += [form.op_type for form in forms]
        assert operators == ["RNN", "Loop"]
        with pytest.raises(LoopliftError, match="not an inference engine"):
            looplift.from_onnx(small(MASKED_RNN), engine="open-vino")

    def test_operators_that_an_engine_keeps(self) -> None:
        model = parse("""g (float[n] x) => (float[n] y) { y = com.microsoft.QuickGelu (x) }""")
        model.opset_import.add(domain="com.microsoft", version=1)
        looplift.from_onnx(model)
        with pytest.raises(LoopliftError, match=r"QuickGelu of com\.microsoft") as caught:
            looplift.from_onnx(model, engine="onnxruntime")
        assert caught.value.remedy.startswith("Operators that only onnxruntime has stay in a model")

    def test_what_onnxruntime_does_is_no_matter(self, caplog: pytest.LogCaptureFixture) -> None:
        model = small(OPEN_BATCH)
        notes = looplift.rewrite(model).report.notes
        assert notes == [
            "onnxruntime's LSTM crashes on an empty batch; the original does not. If batches are "
            'never empty, assert `dims=["B>=1"]`'
        ]
        looplift.from_onnx(model)
        assert not any("onnxruntime" in message for message in caplog.messages)

    def test_rules_that_do_not_end_are_an_error(self) -> None:
        model = parse("g (float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }")
        with pytest.raises(LoopliftError, match=r"does not end.* early with step_limit"):
            looplift.from_onnx(model, rules=[Phase("mine", (Endless,), "My rule.")])

    def test_an_invalid_model_is_one_of_our_errors(self) -> None:
        model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        model.graph.node[0].input[0] = "missing"
        with pytest.warns(UserWarning, match="missing"):  # noqa: SIM117  (the order matters)
            with pytest.raises(LoopliftError, match="missing"):
                looplift.from_onnx(model)

    def test_an_output_needs_no_shape(self) -> None:
        model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        model.graph.output[0].type.tensor_type.ClearField("shape")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            looplift.from_onnx(model)

    def test_warnings_are_about_the_given_model(self) -> None:
        model = parse(BRANCH)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            looplift.from_onnx(model, shape_dict={"x": [4, 3]})
        assert [str(warning.message) for warning in caught] == []

    @pytest.mark.parametrize("size", [1, 400])
    def test_no_warning_is_about_files_beside_the_model(self, size: int, tmp_path: Path) -> None:
        """Whether the external data is in the main graph or in a body."""
        model = parse(
            """g (bool c, float[n] x) => (float[n] z)
            { y = Add(x, w)
              z = If (c) <then_branch = t () => (float[n] a) { v = Constant <value = float[1] {2}> ()
                                                               a = Mul(y, v) },
                          else_branch = e () => (float[n] b) { b = Neg(y) }> }"""
        )
        weight = np.ones(size, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        onnx.save_model(
            model, tmp_path / "m.onnx", save_as_external_data=True, location="m.weights",
            size_threshold=0, convert_attribute=True,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module = looplift.from_onnx(tmp_path / "m.onnx")
        assert "R.add" in module.script()


class Endless(Rule[Tensor]):
    """Replaces a negation by another one, forever."""

    root = "Neg"

    def match(self, m: Match) -> Tensor:
        return m.node.inputs[0]

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.toward_normal_form()
        patch.replace_node(patch.root, [patch.builder(patch.root.outputs[0])("Neg", found)])


class TestDeclarations:
    def test_given_shapes_reach_the_rewrite(self) -> None:
        module = looplift.from_onnx(parse(BRANCH), shape_dict={"x": [4, 3]})
        (got,) = run(module, np.ones((4, 3), np.float32), np.array(True))
        np.testing.assert_array_equal(got, np.full((4, 3), 8, np.float32))

    @pytest.mark.parametrize(
        "size", one_of(2, ["rows", None, -1, tvm.tirx.Var("rows", "int64")]), ids=str
    )
    def test_a_given_size_may_be_open(self, size: Any) -> None:
        module = looplift.from_onnx(parse(BRANCH), shape_dict={"x": [size, 3]})
        for rows in (1, 4):
            (got,) = run(module, np.ones((rows, 3), np.float32), np.array(False))
            np.testing.assert_array_equal(got, np.full((rows, 3), rows, np.float32))

    @pytest.mark.parametrize("taken", [False, True])
    def test_given_types_reach_the_rewrite(self, taken: bool) -> None:
        model = parse("""
        g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { z = Sub(x, x) a = Add(x, z) },
                else_branch = e () => (float[2] b) { b = Mul(x, x) }
            >
        }""")
        module = looplift.from_onnx(model, dtype_dict={"x": "float16"})
        (got,) = run(module, np.full(2, 3, np.float16), np.array(taken))
        np.testing.assert_array_equal(got, np.full(2, 3 if taken else 9, np.float16))

    def test_types_decide_what_constants_are(self) -> None:
        model = parse("g (float[2] x) => (float y) { z = CastLike(w, x) y = ReduceSum(z) }")
        model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [0.1]))
        model.opset_import[0].version = 18
        (got,) = run(looplift.from_onnx(model, dtype_dict={"x": "float16"}), np.ones(2, np.float16))
        assert got.dtype == np.float16

    @pytest.mark.parametrize("shape", [[2, 3], ["n", 3]], ids=str)
    def test_a_contradiction_is_an_error(self, shape: Sequence[Any]) -> None:
        model = parse("g (float[n, m] x) => (float[n, m] y) { y = Neg(x) }")
        with pytest.raises(AssumptionError, match="'x' has a dim 4 that cannot be 2"):
            looplift.from_onnx(model, shape_dict={"x": [4, 3]}, shapes={"x": [2, 3]})

    def test_an_expression_and_an_assertion_are_a_contradiction(self) -> None:
        model = parse("g (float[n, m] x) => (float[n, m] y) { y = Neg(x) }")
        size = tvm.tirx.Var("rows", "int64")
        with pytest.raises(AssumptionError, match="given twice"):
            looplift.from_onnx(model, shape_dict={"x": [size, 3]}, shapes={"x": [2, 3]})

    def test_a_formula_of_an_asserted_dim_is_a_number(self) -> None:
        model = parse("g (float[n] x, float[k] z) => (float[n] y) { y = Neg(x) }")
        model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "2*n + 1"
        main = looplift.from_onnx(model, dims={"n": 3})["main"]
        assert [int(param.ty.shape.values[0]) for param in main.params] == [3, 7]

    def test_a_negative_size_is_open(self) -> None:
        for text in (BRANCH, "g (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }"):
            model = parse(text)
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
            module = looplift.from_onnx(model)
            given = [np.ones((5, 3), np.float32), np.array(True)][: len(model.graph.input)]
            assert run(module, *given)[0].shape == (5, 3)

    def test_a_negative_size_is_open_in_a_rewrite(self) -> None:
        model = parse("g (float[2, 3] x) => (int64[2] y) { y = Shape(x) }")
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
        assert [node.op_type for node in looplift.rewrite(model).model.graph.node] == ["Shape"]
        asserted = looplift.rewrite(model, shapes={"x": [4, 3]}).model
        assert [dim.dim_value for dim in asserted.graph.input[0].type.tensor_type.shape.dim] == [
            4,
            3,
        ]

    def test_the_opset_is_that_of_the_rewrite(self) -> None:
        model = parse("g (float[2, 1] x) => (float[2] y) { y = Squeeze <axes = [1]> (x) }")
        with (
            pytest.warns(UserWarning, match="axes"),
            pytest.warns(UserWarning, match="read by opset 11, though it declares 17"),
        ):
            module = looplift.from_onnx(model, opset=11)
        (got,) = run(module, np.ones((2, 1), np.float32))
        assert got.shape == (2,)

    def test_names_that_are_no_inputs_are_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        """As in TVM; the log names them."""
        model = parse(BRANCH)
        assert redeclare(model, {"q": [1]}, {"r": "float16"}) is model
        looplift.from_onnx(model, shape_dict={"q": [1]}, dtype_dict={"r": "float16"})
        assert caplog.messages == [
            "shape_dict: the model has no input 'q'; its inputs are: x, c",
            "dtype_dict: the model has no input 'r'; its inputs are: x, c",
        ]

    def test_a_shape_of_another_rank_is_an_error(self) -> None:
        with pytest.raises(AssumptionError, match="Input 'x' has rank 2, not 3") as raised:
            looplift.from_onnx(parse(BRANCH), shape_dict={"x": [1, 2, 3]})
        assert raised.value.where == "shape_dict"

    def test_the_given_model_is_not_changed(self) -> None:
        model = parse(BRANCH)
        before = model.SerializeToString()
        looplift.from_onnx(model, shape_dict={"x": [4, 3]}, keep_params_in_input=True, opset=18)
        assert model.SerializeToString() == before


SHAPES = {
    "Reshape": "g (float[n, 4] x) => (float[n, 2, 2] y) <int64[2] t = {2, 2}, int64[1] z = {0}, "
    "int64[1] o = {1}> { s = Shape(x) h = Slice(s, z, o) c = Concat <axis = 0> (h, t) "
    "y = Reshape(x, c) }",
    "Expand": "g (float[n, 4] x) => (float[3, n, 4] y) <int64[1] t = {3}> "
    "{ s = Shape(x) c = Concat <axis = 0> (t, s) y = Expand(x, c) }",
    "ConstantOfShape": "g (float[n, 4] x) => (float[n, 2] y) <int64[1] t = {2}, int64[1] z = {0}, "
    "int64[1] o = {1}> { s = Shape(x) h = Slice(s, z, o) c = Concat <axis = 0> (h, t) "
    "y = ConstantOfShape(c) }",
}


class TestParameters:
    @pytest.mark.parametrize("op_type", SHAPES)
    @pytest.mark.parametrize("importer", [looplift.from_onnx, emit])
    def test_shapes_are_computed_from_parameters(self, op_type: str, importer: Any) -> None:
        model = parse(SHAPES[op_type])
        module = importer(model, keep_params_in_input=True)
        names = [param.name for param in module["main"].params]
        assert names == ["x", *(tensor.name for tensor in model.graph.initializer)]
        module, parameters = relax.frontend.detach_params(module)
        (got,) = run(module, np.ones((3, 4), np.float32), *parameters["main"])
        wanted = {"Reshape": (3, 2, 2), "Expand": (3, 3, 4), "ConstantOfShape": (3, 2)}
        assert got.shape == wanted[op_type]

    def test_weights_are_neither_merged_nor_folded(self) -> None:
        model = parse("""g (float[n, 2] x) => (float[n, 2] y)
        <float[2, 2] v = {1, 2, 3, 4}, float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0, 0}> {
            t = Transpose(w) p = MatMul(x, v) q = MatMul(p, t) y = Add(q, b)
        }""")
        module = looplift.from_onnx(model, keep_params_in_input=True)
        assert [param.name for param in module["main"].params] == ["x", "v", "w", "b"]
        x, v, w = (np.random.default_rng(n).random((2, 2), np.float32) for n in range(3))
        b = np.array([1, 2], np.float32)
        (got,) = run(module, x, v, w, b)
        np.testing.assert_allclose(got, x @ v @ w.T + b, rtol=1e-5)

    def test_weights_of_a_loop_can_be_replaced(self) -> None:
        model = parse("""g (float[2] x, int64 n) => (float[2] y) <float[2] w = {2, 2}> {
            t = Constant <value = bool {1}> ()
            y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) {
                d = Identity(c) r = Mul(s, w)
            }>
        }""")
        module = looplift.from_onnx(model, keep_params_in_input=True)
        x, w = np.ones(2, np.float32), np.array([3, 1], np.float32)
        (got,) = run(module, x, np.array(4), w)
        np.testing.assert_array_equal(got, [81, 1])

    def test_integers_that_are_data_can_be_replaced(self) -> None:
        model = parse("""g (int64[3] x) => (int64[3] y, float[2] z)
        <int64[3] w = {1, 2, 3}, int64[2] i = {0, 1}, float[3] v = {5, 6, 7}> {
            y = Add(x, w) z = Gather(v, i)
        }""")
        module = looplift.from_onnx(model, keep_params_in_input=True)
        v = np.array([5, 6, 7], np.float32)
        got = run(module, np.zeros(3, np.int64), np.array([7, 8, 9]), np.array([2, 0]), v)
        np.testing.assert_array_equal(got[0], [7, 8, 9])
        np.testing.assert_array_equal(got[1], [7, 5])

    def test_what_decides_shapes_stays(self) -> None:
        model = parse("""g (float[n, 4] x) => (float[m, 4] y)
        <int64[1] k = {2}, int64[1] z = {0}, float[2] s = {1, 2}, int64[1] e = {3}> {
            a = Shape(x) h = Slice(a, z, k) u = Resize(x, , s) p = Add(h, e) y = Expand(u, p)
        }""")
        lifted, weights = lift_weights(model)
        assert [tensor.name for tensor in weights] == ["k", "z", "s", "e"]
        assert [info.name for info in lifted.graph.input] == ["x"]

    def test_the_parameters_are_tvms(self) -> None:
        model = parse("""g (float[n, 3] x) => (float[4] y)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] s = {-1}, float[1] unread = {0}> {
            a = MatMul(x, w) b = Transpose <perm = [1, 0]> (a) y = Reshape(b, s)
        }""")
        theirs, ours = (
            importer(model, keep_params_in_input=True) for importer in (stock, looplift.from_onnx)
        )
        assert tvm_ffi.structural_equal(ours, theirs)
        for mine, other in zip(*(m["main"].attrs["params"] for m in (ours, theirs)), strict=True):
            np.testing.assert_array_equal(mine.numpy(), other.numpy())


class TestErrors:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("importer", [stock, looplift.from_onnx])
    def test_they_are_caught_as_tvms(self, importer: Any) -> None:
        old = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        old.ir_version = 2
        unknown = parse("g (float[2] x) => (float[2] y) { y = my.domain.Foo(x) }")
        unfit = parse("g (float[2] x) => (int32[2] y) { y = com.microsoft.MatMulInteger16(x, x) }")
        unfit.opset_import.add(domain="com.microsoft", version=1)
        cases = [
            (unknown, tvm.error.OpNotImplemented),
            (unfit, ValueError),
            (old, ValueError),
        ]
        for model, kind in cases:
            with pytest.raises(kind):
                importer(model)

    def test_they_are_ours_as_well(self) -> None:
        with pytest.raises(UnsupportedError) as caught:
            looplift.from_onnx(parse("g (float[2] x) => (float[2] y) { y = my.domain.Foo(x) }"))
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert str(again) == str(caught.value)


def optional_model() -> onnx.ModelProto:
    """-x if there is an x, else w."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    there = helper.make_graph(
        [
            helper.make_node("OptionalGetElement", ["x"], ["e"]),
            helper.make_node("Neg", ["e"], ["a"]),
        ],
        "there",
        [],
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
    )
    missing = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["b"])],
        "missing",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["x"], ["h"]),
        helper.make_node("If", ["h"], ["y"], then_branch=there, else_branch=missing),
    ]
    inputs = [
        helper.make_value_info("x", helper.make_optional_type_proto(tensor)),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


class TestOptionalInputs:
    def test_none_is_no_tensor(self) -> None:
        module = looplift.from_onnx(optional_model())
        x, w = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
        np.testing.assert_array_equal(run(module, x, w)[0], -x)
        np.testing.assert_array_equal(run(module, None, w)[0], w)

    def test_a_tensor_of_another_shape_is_refused(self) -> None:
        module = looplift.from_onnx(optional_model())
        with pytest.raises(Exception, match="mismatch"):
            run(module, np.ones(3, np.float32), np.ones(2, np.float32))


class TestOperators:
    @pytest.mark.parametrize(
        ("node", "result"),
        [("ArgMax <axis = 1> (p)", "int64"), ("ReduceMax <axes = [1]> (p)", "float")],
    )
    def test_mixed_precision_after_a_product(self, node: str, result: str) -> None:
        model = parse(f"""g (float[4, 3] x) => ({result}[4, 1] y)
        <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> {{ p = MatMul(x, w) y = {node} }}""")
        module = relax.transform.ToMixedPrecision()(looplift.from_onnx(model))
        x = np.eye(4, 3, dtype=np.float32) - 0.5
        (got,) = run(module, x)
        (want,) = run(looplift.from_onnx(model), x)
        np.testing.assert_allclose(got, want, rtol=1e-2)

    @pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
    def test_reductions_are_operators_of_relax(self, op_type: str) -> None:
        model = parse(f"g (float[4, 3] x) => (float[4, 1] y) {{ y = {op_type} <axes = [1]> (x) }}")
        assert "relax.call_tir" not in calls(looplift.from_onnx(model)["main"])

    @pytest.mark.parametrize("op_type", ["Max", "Min"])
    def test_an_extreme_of_two_is_one_operator(self, op_type: str) -> None:
        model = parse(
            f"g (float[4, 3] x, float[3] z) => (float[4, 3] y) {{ y = {op_type} (x, z) }}"
        )
        module = looplift.from_onnx(model)
        assert calls(module["main"]) == [f"relax.{op_type.lower()}imum"]
        x, z = np.full((4, 3), np.inf, np.float32), np.array([np.inf, -np.inf, 0], np.float32)
        choose = np.maximum if op_type == "Max" else np.minimum
        np.testing.assert_array_equal(run(module, x, z)[0], choose(x, z))

    def test_a_squeeze_whose_rank_depends_on_the_run(self) -> None:
        model = parse("g (float[n, 1, 3] x) => (float[n, 3] y) { y = Squeeze(x) }")
        with pytest.raises(UnsupportedError, match="depends on whether axis 0, of size n"):
            looplift.from_onnx(model)
        (got,) = run(looplift.from_onnx(model, dims={"n": 2}), np.ones((2, 1, 3), np.float32))
        assert got.shape == (2, 3)

    def test_a_bound_of_a_slice_may_lack_its_dimension(self) -> None:
        model = parse("""g (float[6] x) => (float[2] y) {
            axis = Constant <value = int64 {0}> () three = Constant <value = int64 {3}> ()
            zero = Constant <value = int64[1] {0}> ()
            s = Shape(x) n = Gather(s, axis) end = Div(n, three) y = Slice(x, zero, end, zero)
        }""")
        for importer in (emit, looplift.from_onnx):
            (got,) = run(importer(model), np.arange(6, dtype=np.float32))
            np.testing.assert_array_equal(got, [0, 1])

    def test_a_new_axis_that_is_no_flag(self) -> None:
        model = parse("""g (float[2] x) => (float[?] y) {
            s = SequenceConstruct(x, x) y = ConcatFromSequence <axis = 0, new_axis = 2> (s)
        }""")
        with pytest.raises(ValueError, match="new_axis is 2"):
            emit(model)

    @pytest.mark.parametrize("op_type", ["Sinh", "Cosh"])
    def test_hyperbolic_functions_are_compiled(self, op_type: str) -> None:
        module = looplift.from_onnx(
            parse(f"g (float[4, 16] x) => (float[4, 16] y) {{ y = {op_type}(x) }}")
        )
        x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(4, 16)
        machine = relax.VirtualMachine(looplift.compile(module), tvm.cpu())
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, getattr(np, op_type.lower())(x), rtol=1e-5)

    def test_c_source_is_compiled(self) -> None:
        module = looplift.from_onnx(parse("g (float[4] x) => (float[4] y) { y = Neg(x) }"))
        assert "float" in looplift.compile(module, "c").mod.imports[0].inspect_source()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype_dict": "float999"}, r"'float999' is not an element type \(dtype_dict"),
        ({"dtype_dict": {"x": "float999"}}, r"'float999' is not an element type \(dtype_dict"),
        ({"dtype_dict": {"x": "float99"}}, "'float99' is not an element type"),
        ({"shape_dict": {"x": 2}}, "The shape of input 'x' is 2, which is not a list"),
        ({"shape_dict": ["x"]}, r"shape_dict is \['x'\], which is not a dict"),
        ({"opset": 999}, "opset is 999; the versions that are known are 1 to"),
        ({"opset": 0}, "opset is 0"),
        ({"opset": "17"}, "opset is '17'"),
        ({"opset": True}, "opset is True"),
        ({"dtype_dict": {"x": "half"}}, "'half' is not an element type"),
        ({"shape_dict": {"x": np.array(2)}}, "which is not a list"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], words: str) -> None:
    text = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    with pytest.raises(looplift.AssumptionError, match=words):
        looplift.from_onnx(model, **arguments)


def test_numbers_and_shapes_of_other_packages() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    version: Any = np.int64(17)
    shapes: Any = {"x": tvm.relax.ShapeExpr([3])}
    module = looplift.from_onnx(model, opset=version, shape_dict=shapes)
    assert [int(size) for size in module["main"].params[0].ty.shape.values] == [3]
