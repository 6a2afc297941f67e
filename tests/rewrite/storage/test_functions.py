"""Model-local functions are inlined."""

from __future__ import annotations

import numpy as np
from onnx import checker, parser

from looplift.rewrite.storage.model import Model, export_model, import_model

from ...small_models import X, assert_runs_equal, run


class TestFunctions:
    @staticmethod
    def _inlined(source: str) -> Model:
        proto = parser.parse_model(source)
        model = import_model(proto)
        exported = export_model(model)
        checker.check_model(exported, full_check=True)
        assert_runs_equal(proto, exported, x=X)
        return model

    def test_named_like_a_standard_operator(self) -> None:
        model = self._inlined("""
            <ir_version: 8, opset_import: ["": 17, "local": 1], producer_name: "kept">
            g (float[2] x) => (float[2] y) { a = local.Relu(x) y = Relu(a) }
            <domain: "local", opset_import: ["": 17]> Relu (x) => (y) { y = Neg(x) }
        """)
        assert [n.op for n in model.graph.nodes] == ["Neg", "Relu"]
        assert not model.header.functions
        assert model.header.producer_name == "kept"

    def test_nested_with_attributes_and_called_twice(self) -> None:
        model = self._inlined("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) {
                a = local.Twice <by = 2.0> (x)
                y = local.Twice <by = 3.0> (a)
            }
            <domain: "local", opset_import: ["": 17, "local": 1]>
            Twice <by> (x) => (y) {
                a = local.Scale <by: float = @by> (x)
                y = local.Scale <by: float = @by> (a)
            }
            <domain: "local", opset_import: ["": 17]>
            Scale <by> (x) => (y) { k = Constant <value_float: float = @by> () y = Mul(x, k) }
        """)
        assert [n.op for n in model.graph.nodes] == ["Constant", "Mul"] * 4

    def test_with_a_branch_that_returns_an_outer_value(self) -> None:
        # onnx's inliner renames such an output to a name that nothing defines.
        source = """
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) { y = local.Choose(x) }
            <domain: "local", opset_import: ["": 17]>
            Choose (x) => (y) {
                c = Constant <value = bool {0}> ()
                y = If (c) <then_branch = t () => (r) { r = Neg(x) }, else_branch = e () => (x) { }>
            }"""
        exported = export_model(import_model(parser.parse_model(source)))
        np.testing.assert_array_equal(run(exported, x=X)[0], X)

    def test_of_another_opset_is_converted(self) -> None:
        proto = parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float y) { y = local.Total(x) }
            <domain: "local", opset_import: ["": 12]>
            Total (x) => (y) { y = ReduceSum <axes = [0], keepdims = 0> (x) }
        """)
        model = import_model(proto)
        assert [n.op for n in model.graph.nodes] == ["Constant", "ReduceSum"]
        assert run(export_model(model), x=X) == [X.sum()]

    def test_that_cannot_be_converted_stays(self) -> None:
        proto = parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float y) { a = local.Negative(x) y = local.Largest(a) }
            <domain: "local", opset_import: ["": 18]>
            Largest (x) => (y) {
                axes = Constant <value_ints = [0]> ()
                y = ReduceMax <keepdims = 0> (x, axes)
            }
            <domain: "local", opset_import: ["": 17]>
            Negative (x) => (y) { y = Neg(x) }
        """)
        model = import_model(proto)
        assert [n.op for n in model.graph.nodes] == ["Neg", "Largest"]
        assert [f.name for f in model.header.functions] == ["Largest"]
        exported = export_model(model)
        assert list(exported.functions) == [proto.functions[0]]
        assert exported.graph.node[1].domain == "local"

    def test_with_an_operator_set_of_its_own(self) -> None:
        model = self._inlined("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) { y = local.Smooth(x) }
            <domain: "local", opset_import: ["": 17, "com.microsoft": 1]>
            Smooth (x) => (y) { y = com.microsoft.Gelu(x) }
        """)
        assert model.opset("com.microsoft") == 1

    def test_called_in_a_body_with_names_that_occur_there(self) -> None:
        self._inlined("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) {
                c = Constant <value = bool {1}> ()
                y = If (c) <
                    then_branch = t () => (float[2] r) { a = Abs(x) b = local.F(a) r = Add(a, b) },
                    else_branch = e () => (float[2] r) { a__1 = Neg(x) r = local.F(a__1) }>
            }
            <domain: "local", opset_import: ["": 17]> F (x) => (y) { a = Exp(x) y = Neg(a) }
        """)

    def test_that_returns_its_input(self) -> None:
        proto = parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) { a = local.F(x) y = Neg(a) }
            <domain: "local", opset_import: ["": 17]> F (x) => (x) { }
        """)
        np.testing.assert_array_equal(run(export_model(import_model(proto)), x=X)[0], -X)

    def test_weights_survive(self) -> None:
        model = self._inlined("""
            <ir_version: 8, opset_import: ["": 17, "local": 1]>
            g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = local.F(x, w) }
            <domain: "local", opset_import: ["": 17]> F (x, w) => (y) { y = Add(x, w) }
        """)
        np.testing.assert_array_equal(model.graph.initializers[0].values, [1.0, 2.0])
