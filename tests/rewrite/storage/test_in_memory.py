"""Models of other libraries: accepted as they are, and returned as the same kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest

import looplift
from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.files import load
from looplift.rewrite.storage.model import import_model

from ...small_models import model, run

# A counted loop that sums its rows, which becomes ReduceSum, inside an If that stays.
SOURCE = """g (float[T, 3] x, float[3] start, bool flag) => (float[3] y) {
    trips = Shape <start = 0, end = 1> (x)
    zero = Constant <value = int64 {0}> ()
    n = Squeeze (trips)
    true = Constant <value = bool {1}> ()
    total = Loop (n, true, start) <body = b (int64 i, bool c, float[3] s)
        => (bool again, float[3] next) {
            again = Identity (c)
            row = Gather <axis = 0> (x, i)
            next = Add (s, row)
        }>
    y = If (flag) <then_branch = t () => (float[3] p) { p = Mul (total, weights) },
                   else_branch = e () => (float[3] q) { q = Exp (total) }>
}"""
WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)


class Program:
    """The part of `torch.onnx.ONNXProgram` that looplift uses.

    torch/onnx/_internal/exporter/_onnx_program.py: `model` is an `onnx_ir.Model`, `model_proto` the
    same serialised, and both constructor arguments are attributes.
    """

    def __init__(self, model: onnx_ir.Model, exported_program: object) -> None:
        self.model = model
        self.exported_program = exported_program

    @property
    def model_proto(self) -> onnx.ModelProto:
        proto: onnx.ModelProto = onnx_ir.to_proto(self.model)
        return proto


def source() -> onnx.ModelProto:
    return model(SOURCE, weights=WEIGHTS)


def proto_of(rewritten: Any) -> Any:
    """The model as its own library serialises it."""
    if isinstance(rewritten, gs.Graph):
        return gs.export_onnx(rewritten)
    return rewritten.model_proto if isinstance(rewritten, Program) else onnx_ir.to_proto(rewritten)


GIVEN = {
    "onnx_ir": onnx_ir.from_proto,
    "torch": lambda proto: Program(onnx_ir.from_proto(proto), "the exported program"),
    "graphsurgeon": gs.import_onnx,
}


@pytest.mark.parametrize("kind", GIVEN)
class TestSameKind:
    def test_the_result_has_the_type_given_and_computes_the_same(self, kind: str) -> None:
        given = GIVEN[kind](source())
        result = looplift.rewrite(given, verify=True)
        assert type(result.model) is type(given)
        assert result.report.control(result.report.after) == {"If": 1}
        rewritten = proto_of(result.model)
        assert {n.op_type for n in rewritten.graph.node} == {"ReduceSum", "Add", "If"}
        for rows in (0, 1, 4):
            for flag in (True, False):
                feeds = {
                    "x": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3),
                    "start": np.ones(3, np.float32),
                    "flag": np.array(flag),
                }
                np.testing.assert_allclose(run(source(), **feeds), run(rewritten, **feeds), 1e-6)

    def test_the_given_model_is_not_changed(self, kind: str) -> None:
        given = GIVEN[kind](source())
        before = proto_of(given).SerializeToString(deterministic=True)
        looplift.rewrite(given, inputs={"flag": True})
        assert proto_of(given).SerializeToString(deterministic=True) == before

    def test_verify_compares_such_models(self, kind: str) -> None:
        given = GIVEN[kind](source())
        result = looplift.rewrite(given)
        assert looplift.verify(given, result.model).verified

    def test_from_onnx_imports_such_models(self, kind: str) -> None:
        tvm = pytest.importorskip("tvm")
        assert isinstance(looplift.from_onnx(GIVEN[kind](source())), tvm.IRModule)


def test_a_program_keeps_the_exported_program() -> None:
    result = looplift.rewrite(GIVEN["torch"](source()))
    assert result.model.exported_program == "the exported program"


class TestExternalData:
    def written(self, folder: Path) -> Path:
        folder.mkdir()
        path = folder / "model.onnx"
        onnx.save(source(), path, save_as_external_data=True, location="w", size_threshold=0)
        return path

    def test_weights_of_an_ir_model_stay_in_their_file(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "folder")
        result = looplift.rewrite(onnx_ir.load(path), verify=True)
        (weights,) = (
            value.const_value
            for value in result.model.graph.initializers.values()
            if isinstance(value.const_value, onnx_ir.ExternalTensor)
        )
        assert Path(weights.path) == path.parent / "w"
        np.testing.assert_array_equal(weights.numpy(), WEIGHTS)

    def test_weights_in_two_folders_are_refused(self, tmp_path: Path) -> None:
        given = onnx_ir.load(self.written(tmp_path / "a"))
        other = onnx_ir.load(self.written(tmp_path / "b"))
        moved = other.graph.initializers["weights"]
        moved.name = "moved"
        given.graph.register_initializer(onnx_ir.Value(name="moved", const_value=moved.const_value))
        with pytest.raises(ModelError, match="in several folders") as raised:
            looplift.rewrite(given)
        assert "load_to_model" in raised.value.remedy


class TestOtherObjects:
    @pytest.mark.parametrize("given", [None, 7, ["model.onnx"], object()])
    def test_an_object_that_is_no_model_is_refused(self, given: object) -> None:
        with pytest.raises(ModelError, match="is not a model"):
            load(given)

    def test_the_graph_of_looplifts_rules_is_refused(self) -> None:
        with pytest.raises(ModelError, match="is not a model"):
            looplift.rewrite(import_model(source()).graph)

    def test_a_graph_that_its_library_cannot_export_is_refused(self) -> None:
        graph = gs.import_onnx(source())
        graph.outputs[0].dtype = None
        with pytest.raises(ModelError, match="cannot be serialised"):
            looplift.rewrite(graph)
