"""IR versions: kept, raised only when needed, lowered to what onnxruntime takes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

from looplift.rewrite.graph import ir
from looplift.rewrite.storage.model import export_model, import_model

from ..small_models import IF, TRUE, X, node, parse, run


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
