"""Import and export: nothing is lost, and captures are references."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, parser

from looplift.rewrite.graph import ir
from looplift.rewrite.storage.model import export_model, import_model

from ...small_models import IF, TRUE, X, node, parse, run


class TestRoundTrip:
    def test_text_model(self) -> None:
        model = parse(IF)
        assert export_model(import_model(model)) == model

    def test_everything_a_file_can_hold(self) -> None:
        model = _full_model()
        assert export_model(import_model(model)) == model

    @pytest.mark.parametrize("folder", ["corpus", "models_dir", "matrix_dir"])
    def test_collections(self, folder: str, request: pytest.FixtureRequest) -> None:
        paths = sorted(request.getfixturevalue(folder).glob("*.onnx"))
        assert paths
        changed = [
            path.name
            for path in paths
            for model in [onnx.load(path)]
            if export_model(import_model(model)) != model
        ]
        assert changed == []

    def test_twice(self) -> None:
        model = import_model(parse(IF))
        assert export_model(model) == export_model(model)


def _full_model() -> onnx.ModelProto:
    """A model with every field that neither the graph classes nor onnxruntime know about."""
    tensor = helper.make_tensor_value_info
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sp", TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("sp_indices", TensorProto.INT64, [1], [1]),
        [2],
    )
    inputs = [
        tensor("x", TensorProto.FLOAT, ["n", None, 2], doc_string="frames"),
        helper.make_tensor_sequence_value_info("s", TensorProto.INT64, ["m"]),
        helper.make_value_info(
            "o",
            helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, [])),
        ),
        helper.make_value_info(
            "m",
            helper.make_map_type_proto(
                TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            ),
        ),
        helper.make_sparse_tensor_value_info("sparse_in", TensorProto.FLOAT, [2]),
    ]
    inputs[0].type.denotation = "TENSOR"
    inputs[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    helper.set_metadata_props(inputs[0], {"input": "yes"})
    opaque = onnx.ValueInfoProto(name="q")
    opaque.type.opaque_type.domain = "com.example"
    opaque.type.opaque_type.name = "handle"
    odd = helper.make_node("Odd", ["x", "", "w"], ["h", ""], "odd", "doc", "com.example")
    odd.overload = "second"
    helper.set_metadata_props(odd, {"source": "line 3"})
    odd.device_configurations.add(configuration_id="two", pipeline_stage=1)
    odd.attribute.extend(
        [
            helper.make_attribute("floats", [0.5, 1.5], "documented"),
            helper.make_attribute("empty", [], attr_type=onnx.AttributeProto.INTS),
            helper.make_attribute("raw", b"\xff\xfe"),
            helper.make_attribute("raws", [b"\xff", b"a"]),
            helper.make_attribute("sparse", sparse),
            helper.make_attribute("type", inputs[1].type),
            helper.make_attribute("tensors", [helper.make_tensor("", 1, [1], [2.0])]),
            helper.make_attribute("graphs", [helper.make_graph([], "in", [], [])]),
        ]
    )
    nodes = [
        odd,
        helper.make_node("Relu", ["h"], ["y"], domain="ai.onnx"),
        helper.make_node("Opaque", ["m"], ["q"], domain="com.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "full",
        inputs,
        [tensor("y", TensorProto.FLOAT, None), opaque],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0]),
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]),
            helper.make_tensor("unused", TensorProto.INT32, [1], [3]),
        ],
        "what it is for",
        [tensor("h", TensorProto.FLOAT, ["n", 2]), tensor("w", TensorProto.FLOAT, [1])],
        [sparse],
    )
    graph.initializer[0].doc_string = "a weight"
    helper.set_metadata_props(graph, {"stage": "7"})
    helper.set_metadata_props(graph.initializer[0], {"kept": "yes"})
    annotation = graph.quantization_annotation.add(tensor_name="h")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    model = helper.make_model(
        graph,
        producer_name="somebody",
        producer_version="1.2",
        domain="org.example",
        model_version=42,
        doc_string="the model",
        ir_version=11,
        opset_imports=[
            helper.make_opsetid("ai.onnx", 21),
            helper.make_opsetid("com.example", 3),
        ],
    )
    helper.set_model_props(model, {"author": "a", "licence": "b"})
    model.configuration.add(name="two", num_devices=2)
    model.training_info.add().algorithm.name = "sgd"
    return model


class TestGraph:
    def test_a_capture_is_the_outer_value(self) -> None:
        graph = import_model(parse(IF)).graph
        outer = node(graph, "Neg").outputs[0]
        choice = node(graph, "If")
        assert choice.attrs["then_branch"].nodes[0].inputs[0] is outer
        assert choice.attrs["else_branch"].nodes[0].inputs[0] is outer
        assert choice.attrs["then_branch"].nodes[0].inputs[1] is graph.inputs[1]

    def test_equal_names_in_branches_are_different_values(self) -> None:
        choice = node(import_model(parse(IF)).graph, "If")
        then, other = choice.attrs["then_branch"], choice.attrs["else_branch"]
        assert then.nodes[0].outputs[0] is not other.nodes[0].outputs[0]
        assert then.outputs[0] is then.nodes[1].outputs[0]

    def test_a_name_defined_inside_shadows_the_outer_one(self) -> None:
        model = import_model(
            parse("""g (bool c, float[2] x) => (float[2] y) {
                a = Neg(x)
                b = If (c) <
                    then_branch = t () => (float[2] r) {
                        a = Add(x, x)
                        r = If (c) <
                            then_branch = tt () => (float[2] p) { p = Exp(a) },
                            else_branch = te () => (float[2] q) { q = Log(a) }>
                    },
                    else_branch = e () => (float[2] r) { r = Abs(a) }>
                y = Add(a, b)
            }""")
        )
        outer = node(model.graph, "Neg").outputs[0]
        then = node(model.graph, "If").attrs["then_branch"]
        hiding = node(then, "Add").outputs[0]
        innermost = node(then, "If").attrs["then_branch"]
        assert innermost.nodes[0].inputs[0] is hiding
        assert node(model.graph, "If").attrs["else_branch"].nodes[0].inputs[0] is outer
        assert node(model.graph, "Add").inputs[0] is outer
        exported = export_model(model)
        checker.check_model(exported, full_check=True)
        (result,) = run(exported, c=TRUE, x=X)
        np.testing.assert_allclose(result, np.exp(X + X) - X, rtol=1e-6)

    def test_nodes_are_sorted_and_numbered(self) -> None:
        model = import_model(
            parse("""g (bool c, float[2] x) => (float[2] y) {
                [third] y = If (c) <
                    then_branch = t () => (float[2] r) { r = Add(b, x) },
                    else_branch = e () => (float[2] r) { r = Neg(x) }>
                [second] b = Abs(a)
                [free] f = Exp(x)
                [first] a = Neg(x)
            }""")
        )
        assert [n.name for n in model.graph.nodes] == ["free", "first", "second", "third"]
        assert [n.order for n in model.graph.nodes] == [
            0,
            ir.SPACING,
            2 * ir.SPACING,
            3 * ir.SPACING,
        ]
        checker.check_model(export_model(model))

    def test_omitted_inputs_and_outputs_stay_omitted(self) -> None:
        source = """g (float[5,1,3] x, float[1,8,3] w, float[1,8,2] r, float[1,1,2] h) =>
            (float[1,1,2] last) { , last = LSTM <hidden_size = 2> (x, w, r, , , h) }"""
        model = parse(source)
        graph = import_model(model).graph
        assert [t.name for t in graph.nodes[0].inputs] == ["x", "w", "r", "", "", "h"]
        assert graph.nodes[0].outputs[0].name == ""
        assert export_model(import_model(model)) == model

    def test_attributes_are_python_values(self) -> None:
        graph = import_model(
            parse("""g (float[1,1,4,4] x) => (float[1,1,4,4] y, float[2] z) {
                y = AveragePool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2]> (x)
                a = LeakyRelu <alpha = 0.5> (y)
                z = Constant <value = float[2] {1.0, 2.0}> ()
            }""")
        ).graph
        assert node(graph, "AveragePool").attrs == {
            "auto_pad": "SAME_UPPER",
            "kernel_shape": [2, 2],
        }
        assert node(graph, "LeakyRelu").attrs == {"alpha": 0.5}
        np.testing.assert_array_equal(node(graph, "Constant").attrs["value"].values, [1.0, 2.0])

    def test_the_default_domain_has_one_name(self) -> None:
        proto = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        proto.graph.node[0].domain = "ai.onnx"
        proto.opset_import[0].domain = "ai.onnx"
        model = import_model(proto)
        assert model.graph.nodes[0].domain == ""
        assert model.opset() == 17
        assert model.opset("com.example") == 0
        assert export_model(model) == proto


def _loops_beside_nodes(loops: int, nodes: int) -> onnx.ModelProto:
    body = parser.parse_graph(
        "b (int64 i, bool c, float[2] s) => (bool c, float[2] t) { t = Add(s, v0) }"
    )
    chain = [helper.make_node("Neg", [f"v{i - 1}" if i else "x"], [f"v{i}"]) for i in range(nodes)]
    repeated = [
        helper.make_node("Loop", ["n", "", f"v{i % nodes}"], [f"l{i}"], body=body)
        for i in range(loops)
    ]
    graph = helper.make_graph(
        chain + repeated,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info(f"l{loops - 1}", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_time_is_linear_in_the_size_of_the_model() -> None:
    def seconds(model: onnx.ModelProto) -> float:
        start = time.process_time()
        export_model(import_model(model))
        return time.process_time() - start

    small, large = _loops_beside_nodes(200, 2000), _loops_beside_nodes(2000, 20000)
    # Ten times the size; quadratic time would be a factor of 100.
    assert seconds(large) < 30 * min(seconds(small) for _ in range(3))


class TestVersions:
    def test_a_default_of_an_input(self) -> None:
        proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
        proto.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
        model = import_model(proto)
        default, x = model.graph.inputs
        assert isinstance(default, ir.Constant)
        assert default.overridable
        assert isinstance(x, ir.Variable)
        exported = export_model(model)
        assert exported == proto
        np.testing.assert_array_equal(run(exported, x=X, w=X)[0], X + X)

    def test_initializers_of_an_old_file_are_no_inputs(self) -> None:
        proto = _old_model()
        model = import_model(proto)
        assert [tensor.name for tensor in model.graph.inputs] == ["x"]
        assert not model.graph.initializers[0].overridable
        assert export_model(model) == proto

    def test_an_old_file_stays_old_when_a_constant_goes(self) -> None:
        model = import_model(_old_model())
        add = node(model.graph, "Add")
        add.inputs[1] = add.inputs[0]
        model.graph.initializers.clear()
        exported = export_model(model)
        assert exported.ir_version == 3
        assert [info.name for info in exported.graph.input] == ["x"]
        checker.check_model(exported)

    def test_a_new_constant_makes_an_old_file_newer(self) -> None:
        model = import_model(_old_model())
        added = ir.Constant("v", np.ones(2, np.float32))
        node(model.graph, "Add").inputs[0] = added
        model.graph.initializers.append(added)
        exported = export_model(model)
        assert exported.ir_version == 4
        assert [info.name for info in exported.graph.input] == ["x"]
        checker.check_model(exported)
        np.testing.assert_array_equal(run(exported, x=X)[0], [2.0, 3.0])

    @pytest.mark.parametrize("ir_version", [4, 8, 13])
    def test_the_ir_version_stays(self, ir_version: int) -> None:
        assert export_model(import_model(parse(IF, 13, ir_version))).ir_version == ir_version

    def test_an_ir_version_beyond_onnxruntime_is_lowered(self) -> None:
        exported = export_model(import_model(parse(IF, ir_version=14)))
        assert exported.ir_version == 13
        assert run(exported, c=TRUE, x=X)

    def test_an_ir_version_that_is_needed_stays(self) -> None:
        proto = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }", ir_version=14)
        values = np.array([1.0, 2.0], ml_dtypes.float6_e2m3fn)
        proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
        assert export_model(import_model(proto)) == proto

    def test_a_missing_ir_version_is_filled_in(self) -> None:
        proto = parse(IF)
        proto.ClearField("ir_version")
        exported = export_model(import_model(proto))
        checker.check_model(exported)
        assert run(exported, c=TRUE, x=X)


def _old_model() -> onnx.ModelProto:
    """Before IR version 4 every initializer had to be repeated among the inputs."""
    proto = parse(
        "g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }", 8, 3
    )
    proto.graph.input.insert(0, helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    checker.check_model(proto)
    return proto
