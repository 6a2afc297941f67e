"""A plain model becomes what TVM's own importer makes of it; where that differs, it is better."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm_ffi
from onnx import TensorProto, helper
from tvm.relax.frontend.onnx import from_onnx

from looplift.lowering import emit
from looplift.lowering.values import as_int

Load = Callable[..., Any]
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

PLAIN = {
    "elementwise": """
    g (float[n, 4] x, float[4] b) => (float[n, 4] y, float[n, 4] z) {
        a = Add(x, b) y = Relu(a) z = Mul(a, y)
    }""",
    "weights": """
    g (float[2, 3] x) => (float[4] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[1] s = {-1}> {
        a = MatMul(x, w) b = Transpose <perm = [1, 0]> (a) y = Reshape(b, s)
    }""",
    "several_results": """
    g (float[n, 6] x) => (float[n, 2] y, float[n, 4] z) <int64[2] s = {2, 4}> {
        y, z = Split <axis = 1> (x, s)
    }""",
    "shapes": """
    g (float[n, 2, 3] x) => (float[n, 6] y) {
        i = Constant <value = int64 {0}> ()
        a = Constant <value = int64[1] {0}> ()
        m = Constant <value = int64[1] {-1}> ()
        s = Shape(x) d = Gather(s, i) u = Unsqueeze(d, a) t = Concat <axis = 0> (u, m)
        y = Reshape(x, t)
    }""",
    "convolution": """
    g (float[n, 1, 5] x) => (float[n, 1, 4] y)
    <float[1, 1, 2] w = {1, 2}, float[1] s = {1}, float[1] b = {0}> {
        c = Conv(x, w) d = BatchNormalization(c, s, b, b, s) y = Softmax(d)
    }""",
    "renamed": "g (float[2] 1.x, float[2] a.b) => (float[2] y) { y = Sub(1.x, a.b) }",
    "nothing": "g (float[2] x) => (float[2] y) { y = Identity(x) }",
}


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def both(model: onnx.ModelProto, **options: Any) -> list[tuple[Any, list[str]]]:
    """The modules of TVM's importer and of ours, each with the warnings on the way."""
    results = []
    for importer in (from_onnx, emit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module = importer(model, **options)
        results.append((module, [str(warning.message) for warning in caught]))
    return results


def assert_equal(model: onnx.ModelProto, **options: Any) -> None:
    (theirs, their_warnings), (ours, our_warnings) = both(model, **options)
    assert tvm_ffi.structural_equal(ours, theirs), f"{ours.script()}\n{theirs.script()}"
    names = [[param.name for param in module["main"].params] for module in (ours, theirs)]
    assert names[0] == names[1]
    # The same is warned of, in words of our own: the checker's texts are ONNX's.
    assert len(our_warnings) == len(their_warnings)
    for our, their in zip(our_warnings, their_warnings):
        assert re.findall(r"\d+", our) == re.findall(r"\d+", their)[::-1] or our == their


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("keep_params_in_input", [False, True])
def test_the_module_is_the_same_as_tvms(name: str, keep_params_in_input: bool) -> None:
    text = PLAIN[name]
    if name == "renamed":
        text = text.replace("1.x", "x1").replace("a.b", "ab")
    model = parse(text)
    if name == "renamed":
        rename(model, {"x1": "1.x", "ab": "a.b"})
    assert_equal(model, keep_params_in_input=keep_params_in_input)


def rename(model: onnx.ModelProto, names: dict[str, str]) -> None:
    """Give graph inputs names that ONNX's text form does not take."""
    for value in model.graph.input:
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


@pytest.mark.parametrize(
    "options",
    [
        {"shape_dict": {"x": [3, 4]}},
        {"dtype_dict": {"x": "float64", "b": "float64"}},
        {"dtype_dict": "float16"},
        {"opset": 13},
        {"opset": 18},
        {"sanitize_input_names": False},
    ],
    ids=str,
)
def test_the_options_are_tvms(options: dict[str, Any]) -> None:
    assert_equal(parse(PLAIN["elementwise"]), **options)


def test_the_warnings_are_tvms() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.input[0].name = model.graph.node[0].input[0] = "x.1"
    (_, theirs), (_, ours) = both(model)
    assert [text.split()[0] for text in ours] == ["Field", "Input", "Renaming"]
    assert ours == theirs


def test_weights_are_listed_as_tvm_lists_them() -> None:
    model = parse(PLAIN["weights"])
    (theirs, _), (ours, _) = both(model, keep_params_in_input=True)
    weights = [module["main"].attrs["params"] for module in (ours, theirs)]
    for mine, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


def dims(module: Any) -> list[list[str]]:
    """The dimensions of the inputs, as text."""
    shapes = [param.ty.shape.values for param in module["main"].params]
    return [[str(as_int(size) or size) for size in shape] for shape in shapes]


def with_dims(*shapes: list[int | str | None]) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, shape)
        for index, shape in enumerate(shapes)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes[0])
    graph = helper.make_graph([helper.make_node("Neg", ["x0"], ["y"])], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_dimensions_without_a_name_differ() -> None:
    ((a, b), (c,)) = dims(emit(with_dims([None, None], [None])))
    assert len({a, b, c}) == 3


def test_dimensions_of_one_name_are_equal() -> None:
    ((a, b), (c, d)) = dims(emit(with_dims(["batch", 4], ["batch", "time"])))
    assert (a, b, c, d) == ("batch", "4", "batch", "time")


def test_a_formula_over_other_dimensions_is_their_expression() -> None:
    model = with_dims(["2*n", "1+2*n", "(n-1)//2"], ["n"])
    ((a, b, c), (n,)) = dims(emit(model))
    assert (a, b, c, n) == (
        "T.int64(2) * n",
        "T.int64(1) + T.int64(2) * n",
        "(n - T.int64(1)) // T.int64(2)",
        "n",
    )


def test_a_run_checks_a_formula(imported: Load) -> None:
    model = imported(with_dims(["2*n", "1+2*n"], ["n"]).SerializeToString())
    n = np.ones(2, np.float32)
    (got,) = model.run(np.ones((4, 5), np.float32), n)
    assert got.shape == (4, 5)
    for wrong in ((4, 6), (5, 5), (4, 4)):
        with pytest.raises(Exception, match="mismatch"):
            model.run(np.ones(wrong, np.float32), n)


def test_a_formula_over_unknown_names_is_a_name() -> None:
    ((a, b), (c, d)) = dims(emit(with_dims(["m+1", "batch-size"], ["m+1", "k"])))
    assert a == c
    assert len({a, b, d}) == 3
    assert all(name.isidentifier() for name in (a, b, d))


def test_names_that_look_alike_stay_apart() -> None:
    ((a, b, c),) = dims(emit(with_dims(["a b", "a-b", "0a"])))
    assert len({a, b, c}) == 3
    assert all(name.isidentifier() for name in (a, b, c))


def test_given_shapes_may_name_symbols() -> None:
    model = with_dims([None, None], [None])
    shapes: dict[str, list[Any]] = {"x0": ["rows", 3], "x1": [None]}
    ((a, b), (c,)) = dims(emit(model, shape_dict=shapes))
    assert (a, b) == ("rows", "3")
    assert c != "rows"


def test_a_local_function_is_what_it_says_whatever_its_name(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
    g (float[2] x, bool c) => (float[2] y) {
        a = my.domain.Relu (x)
        y = If (c) <
            then_branch = t () => (float[2] p) { p = my.domain.Relu (a) },
            else_branch = e () => (float[2] q) { q = Identity(a) }
        >
    }
    <domain: "my.domain", opset_import: ["" : 17]>
    Relu (x) => (y) { two = Constant <value_float = 2.0> () y = Mul(x, two) }
    """)
    for taken in (True, False):
        model.check(np.array([-1, 3], np.float32), taken)


@pytest.mark.parametrize(
    "node", ["Celu <alpha = 2.0> (x)", "MeanVarianceNormalization <axes = [0]> (x)"]
)
def test_an_operator_that_tvm_lacks_is_composed_as_its_specification_says(
    imported: Load, node: str
) -> None:
    model = imported(f"g (float[n, 2] x) => (float[n, 2] y) {{ y = {node} }}")
    model.check(np.array([[-1, 3], [0, 5]], np.float32))


def test_operators_of_com_microsoft(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[n, 2] x, float[2] b) => (float[n, 2] y) { y = com.microsoft.BiasGelu (x, b) }""")
    model.check(np.array([[-1, 3], [0, 5]], np.float32), np.array([1, 2], np.float32))


def test_an_initializer_that_is_an_input_too_is_no_parameter() -> None:
    model = parse("""
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }""")
    for keep in (False, True):
        main = emit(model, keep_params_in_input=keep)["main"]
        assert main.attrs["num_input"] == 1
        assert [param.name for param in main.params] == (["x", "w"] if keep else ["x"])


@pytest.mark.parametrize("size", ["class", "lambda", "new", "char", "_n", "7x", "a.b", "größe"])
def test_sizes_get_identifiers(size: str) -> None:
    """Python takes them, and so does the C++ code of kernels, in which they are parameters."""
    model = onnx.parser.parse_model(HEADER + PLAIN["elementwise"])
    for value in (*model.graph.input, *model.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if first.dim_param:
            first.dim_param = size
    text = emit(model).script()
    compile(text, "module.py", "exec")
    name = re.search(r"x: R\.Tensor\(\((\w+), 4\)", text)
    assert name is not None
    assert name[1].isidentifier()
    assert name[1] not in ("new", "char")


def test_an_input_named_like_a_keyword_is_renamed() -> None:
    model = onnx.parser.parse_model(HEADER + PLAIN["elementwise"].replace("x", "None"))
    with pytest.warns(UserWarning, match="Renaming name None to input_None"):
        module = emit(model)
    compile(module.script(), "module.py", "exec")
