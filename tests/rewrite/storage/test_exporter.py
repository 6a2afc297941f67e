"""Edits of rules appear in the exported file, with unambiguous names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper

from looplift.rewrite.graph import ir
from looplift.rewrite.storage.model import Model, export_model, import_model

from ...small_models import FALSE, IF, TRUE, X, assert_runs_equal, node, parse, run


class TestEdits:
    """What rules do to a graph arrives in the file."""

    @pytest.fixture
    def model(self) -> Model:
        return import_model(
            parse("""g (float[2,3] x) => (float[3,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}> {
                [add] a = Add(x, w)
                [leaky] b = LeakyRelu <alpha = 0.5> (a)
                [turn] y = Transpose <perm = [1, 0]> (b)
            }""")
        )

    @staticmethod
    def _attributes(model: Model) -> Iterator[onnx.AttributeProto]:
        for proto in export_model(model).graph.node:
            yield from proto.attribute

    def test_changed_attributes(self, model: Model) -> None:
        node(model.graph, "LeakyRelu").attrs["alpha"] = 2
        node(model.graph, "Transpose").attrs["perm"].reverse()
        alpha, perm = self._attributes(model)
        assert (alpha.type, alpha.f) == (onnx.AttributeProto.FLOAT, 2.0)
        assert (perm.type, list(perm.ints)) == (onnx.AttributeProto.INTS, [0, 1])

    def test_removed_attribute(self, model: Model) -> None:
        del node(model.graph, "Transpose").attrs["perm"]
        assert [attribute.name for attribute in self._attributes(model)] == ["alpha"]

    def test_attribute_of_a_new_node_gets_the_type_of_the_operator(self, model: Model) -> None:
        out = ir.Variable("z", np.dtype(np.float32), [3, 2])
        elu = ir.Node("Elu", "new", {"alpha": 1}, [model.graph.outputs[0]], [out])
        cast = ir.Node(
            "Cast", "", {"to": 1}, [out], [ir.Variable("z2", np.dtype(np.float32), [3, 2])]
        )
        model.graph.nodes += [elu, cast]
        elu.order, cast.order = 3 * ir.SPACING, 4 * ir.SPACING
        model.graph.outputs[0] = cast.outputs[0]
        exported = export_model(model)
        checker.check_model(exported, full_check=True)
        assert exported.graph.node[3].attribute[0].type == onnx.AttributeProto.FLOAT
        assert exported.graph.node[4].attribute[0].type == onnx.AttributeProto.INT

    def test_attribute_of_a_foreign_operator_is_typed_by_its_value(self, model: Model) -> None:
        attrs = {
            "i": 1,
            "f": 1.0,
            "s": "ä",
            "is": [1, 2],
            "fs": [1, 2.5],
            "ss": ["a"],
            "b": True,
            "n": np.float32(0.5),
            "t": ir.Constant("", np.array([1, 2])),
        }
        model.graph.nodes.append(ir.Node("Foreign", "", attrs, domain="com.example"))
        exported = export_model(model)
        assert {
            a.name: onnx.AttributeProto.AttributeType.Name(a.type)
            for a in exported.graph.node[-1].attribute
        } == {
            "i": "INT",
            "f": "FLOAT",
            "s": "STRING",
            "is": "INTS",
            "fs": "FLOATS",
            "ss": "STRINGS",
            "b": "INT",
            "n": "FLOAT",
            "t": "TENSOR",
        }
        assert [entry.domain for entry in exported.opset_import] == ["", "com.example"]

    def test_renamed_value(self, model: Model) -> None:
        node(model.graph, "Add").outputs[0].name = "sum"
        exported = export_model(model)
        assert exported.graph.node[0].output[0] == "sum"
        assert exported.graph.node[1].input[0] == "sum"

    def test_asserted_shape_of_an_input(self, model: Model) -> None:
        proto = parse("g (float[n,3] x) => (float[m,3] y) { y = Neg(x) }")
        model = import_model(proto)
        asserted = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3], "kept")
        model.graph.inputs[0].info = asserted
        assert list(export_model(model).graph.input) == [asserted]

    def test_new_and_removed_constants(self, model: Model) -> None:
        add = node(model.graph, "Add")
        added = ir.Constant("fresh", np.ones((2, 3), np.float32))
        add.inputs[1] = added
        model.graph.initializers[:] = [added]
        exported = export_model(model)
        assert [tensor.name for tensor in exported.graph.initializer] == ["fresh"]
        checker.check_model(exported, full_check=True)

    def test_declarations_and_annotations_follow_the_values(self) -> None:
        proto = parse("""g (float[2] x) => (float[2] y)
            <float[2] a, float[2] b, float s = {1.0}> { a = Neg(x) b = Abs(a) y = Exp(b) }""")
        for name in "ab":
            annotation = proto.graph.quantization_annotation.add(tensor_name=name)
            annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
        model = import_model(proto)
        assert export_model(model) == proto
        neg, absolute, exp = model.graph.nodes
        neg.outputs[0].name = "renamed"
        model.graph.initializers[0].name = "scale"
        exp.inputs[0] = neg.outputs[0]
        model.graph.nodes.remove(absolute)
        exported = export_model(model).graph
        assert [info.name for info in exported.value_info] == ["renamed"]
        (annotation,) = exported.quantization_annotation
        assert annotation.tensor_name == "renamed"
        assert annotation.quant_parameter_tensor_names[0].value == "scale"


class TestNames:
    """New and moved values get unique names."""

    def test_clash_after_moving_a_branch_outward(self) -> None:
        model = import_model(parse(IF))
        choice = node(model.graph, "If")
        then, other = choice.attrs["then_branch"], choice.attrs["else_branch"]
        hoisted = then.nodes.pop(0)
        model.graph.nodes.insert(1, hoisted)
        assert hoisted.outputs[0].name == other.nodes[0].outputs[0].name
        exported = export_model(model)
        checker.check_model(exported, full_check=True)
        before = parse(IF)
        assert_runs_equal(before, exported, c=TRUE, x=X)
        assert_runs_equal(before, exported, c=FALSE, x=X)

    def test_two_values_of_one_graph(self) -> None:
        model = import_model(parse("g (float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }"))
        neg, absolute = model.graph.nodes
        exp = ir.Node("Exp", inputs=[neg.outputs[0]], outputs=[ir.Variable("a")])
        absolute.inputs[0] = exp.outputs[0]
        model.graph.nodes.insert(1, exp)
        (result,) = run(export_model(model), x=X)
        np.testing.assert_allclose(result, np.exp(-X), rtol=1e-6)

    def test_outputs_of_the_main_graph_keep_their_names(self) -> None:
        model = import_model(parse("g (float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }"))
        node(model.graph, "Neg").outputs[0].name = "y"
        exported = export_model(model)
        assert exported.graph.output[0].name == "y"
        np.testing.assert_array_equal(run(exported, x=X)[0], np.abs(X))

    def test_a_body_input_that_shadows_a_captured_value(self) -> None:
        proto = parse("""g (int64 n, bool c, float[2] x) => (float[2] y) {
            y = Loop (n, c, x) <
                body = b (int64 i, bool ci, float[2] s) => (bool ci, float[2] t) { t = Add(s, x) }>
        }""")
        model = import_model(proto)
        node(model.graph, "Loop").attrs["body"].inputs[2].name = "x"
        assert_runs_equal(proto, export_model(model), n=np.array(3), c=TRUE, x=X)

    def test_a_branch_that_returns_an_outer_value(self) -> None:
        model = import_model(parse(IF))
        choice = node(model.graph, "If")
        choice.attrs["then_branch"].outputs[0] = model.graph.inputs[1]
        exported = export_model(model)
        checker.check_model(exported, full_check=True)
        np.testing.assert_array_equal(run(exported, c=TRUE, x=X)[0], X)

    def test_a_branch_that_returns_a_value_twice(self) -> None:
        # onnxruntime takes such a branch and leaves the first output uninitialised.
        model = import_model(
            parse("""g (bool c, float[2] x) => (float[2] y, float[2] z) {
                y, z = If (c) <
                    then_branch = t () => (float[2] p, float[2] q) { p = Neg(x) q = Abs(x) },
                    else_branch = e () => (float[2] p, float[2] q) { p = Exp(x) q = Abs(x) }>
            }""")
        )
        then = node(model.graph, "If").attrs["then_branch"]
        then.outputs[1] = then.outputs[0]
        first, second = run(export_model(model), c=TRUE, x=X)
        np.testing.assert_array_equal(first, -X)
        np.testing.assert_array_equal(second, -X)

    def test_a_branch_that_returns_an_initializer(self, matrix_dir: Path) -> None:
        proto = onnx.load(matrix_dir / "if_branch_output_is_initializer.onnx")
        model = import_model(proto)
        branches = [
            body
            for n in model.graph.nodes
            for body in n.attrs.values()
            if isinstance(body, ir.Graph)
        ]
        assert any(isinstance(body.outputs[0], ir.Constant) for body in branches)
        assert export_model(model) == proto


def test_a_body_does_not_use_names_of_later_nodes() -> None:
    """onnxruntime may run a node before a loop that precedes it in the file.

    It then rejects a body of the loop that computes a value of the same name.
    """
    model = parse("""g (float[T,3] xs, float[3] h, float[3] c) => (float[3] y, float[3] z) {
        p = Neg(xs)
        y = Scan <num_scan_inputs=1, body = b (float[3] s, x) => (float[3] so) {
            z = Add(s, x) so = Sin(z) }> (h, p)
        z = Neg(c) }""")
    written = export_model(import_model(model))
    (scan,) = (n for n in written.graph.node if n.op_type == "Scan")
    (body,) = (a.g for a in scan.attribute if a.name == "body")
    assert all("z" not in n.output for n in body.node)
    assert [info.name for info in written.graph.output] == ["y", "z"]
    shapes = {"xs": (2, 3), "h": (3,), "c": (3,)}
    feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    y, z = run(written, **feed)
    np.testing.assert_allclose(y, np.full(3, np.sin(np.sin(0.0) - 1)), rtol=1e-6)
    np.testing.assert_array_equal(z, -np.ones(3))
