"""Constants of all types and locations are decoded when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from looplift.rewrite.errors import ModelError
from looplift.rewrite.graph import ir
from looplift.rewrite.storage.model import export_model, import_model

from ...small_models import X, parse, run

VALUES = [
    pytest.param(np.array([[1.5, -2.0]], np.float32), id="float32"),
    pytest.param(np.array([1.5, -2.0], np.float16), id="float16"),
    pytest.param(np.array([1.5, -2.0], ml_dtypes.bfloat16), id="bfloat16"),
    pytest.param(np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn), id="float8"),
    pytest.param(np.array([3, -4, 7], ml_dtypes.int4), id="int4"),
    pytest.param(np.array([1, 0, -2], ml_dtypes.int2), id="int2"),
    pytest.param(np.array([True, False]), id="bool"),
    pytest.param(np.array([1 + 2j], np.complex64), id="complex64"),
    pytest.param(np.zeros((0, 3), np.int64), id="empty"),
    pytest.param(np.array(7, np.int64), id="scalar"),
]


class TestConstants:
    @staticmethod
    def _imported(tensor: onnx.TensorProto, base_dir: str = "") -> ir.Constant:
        proto = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }", ir_version=13)
        proto.graph.initializer.append(tensor)
        constant = import_model(proto, base_dir).graph.initializers[0]
        assert isinstance(constant, ir.Constant)
        return constant

    @pytest.mark.parametrize("values", VALUES)
    def test_values(self, values: np.ndarray[Any, Any]) -> None:
        constant = self._imported(numpy_helper.from_array(values, "w"))
        assert constant.dtype == values.dtype
        assert constant.shape == values.shape
        np.testing.assert_array_equal(constant.values, values)

    def test_every_number_but_0_is_true(self) -> None:
        """onnxruntime reads all bits of it, numpy_helper the lowest 8."""
        numbers = [0, 1, 2, -1, 256, 1 << 16]
        tensor = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[6], int32_data=numbers)
        assert self._imported(tensor).values.tolist() == [number != 0 for number in numbers]
        model = parse("g () => (bool[6] y) { y = Identity(w) }")
        model.graph.initializer.append(tensor)
        assert run(model)[0].tolist() == [number != 0 for number in numbers]

    @pytest.mark.parametrize("values", VALUES)
    def test_bytes_that_are_missing_or_too_many(self, values: np.ndarray[Any, Any]) -> None:
        """They are found before anything reads the values, which need not happen."""
        whole = numpy_helper.from_array(values, "w").raw_data
        for data in (whole[:-1], whole + b"."):
            if data != whole:
                tensor = numpy_helper.from_array(values, "w")
                tensor.raw_data = data
                with pytest.raises(ModelError, match=f"{len(data)} bytes are stored, the elements"):
                    self._imported(tensor)

    @pytest.mark.parametrize("values", VALUES)
    def test_external_values(self, values: np.ndarray[Any, Any], tmp_path: Path) -> None:
        tensor = numpy_helper.from_array(values, "w")
        (tmp_path / "w.bin").write_bytes(b"...." + tensor.raw_data)
        length = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in {"location": "w.bin", "offset": "4", "length": str(length)}.items():
            tensor.external_data.add(key=key, value=text)
        constant = self._imported(tensor, str(tmp_path))
        assert constant.dtype == values.dtype
        np.testing.assert_array_equal(constant.values, values)

    def test_strings(self) -> None:
        tensor = numpy_helper.from_array(np.array(["ä", "b"], object), "w")
        assert list(self._imported(tensor).values) == ["ä", "b"]

    @pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
    def test_sparse_values(self, indices: list[Any]) -> None:
        proto = parse("g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }")
        proto.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.array([4, 6], np.float16), "w"),
                numpy_helper.from_array(np.array(indices), "i"),
                [2, 3],
            )
        )
        proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
        model = import_model(proto)
        values = model.graph.initializers[0].values
        np.testing.assert_array_equal(values, np.array([[0, 4, 0], [0, 0, 6]], np.float16))
        assert export_model(model) == proto

    def _sparse(self, values: list[int], indices: list[Any], dims: list[int]) -> Any:
        proto = parse("g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }")
        stored = numpy_helper.from_array(np.array(values, np.float32), "w")
        places = numpy_helper.from_array(np.array(indices), "i")
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(stored, places, dims))
        return import_model(proto).graph.initializers[0].values

    @pytest.mark.parametrize(
        "indices",
        [[1, 6], [-1, 5], [[0, 1], [-1, 2]], [1], [[0], [1]]],
        ids=["too large", "negative", "negative coordinate", "too few", "too few coordinates"],
    )
    def test_sparse_values_that_do_not_fit(self, indices: list[Any]) -> None:
        with pytest.raises(ModelError, match=r"do not fit the shape.*sparse tensor 'w'"):
            self._sparse([4, 6], indices, [2, 3])[...]

    def test_sparse_values_for_which_there_is_no_memory(self) -> None:
        with pytest.raises(ModelError, match="no memory"):
            self._sparse([4], [0], [2**24, 2**24])[...]

    def test_stored_values_cannot_be_changed_by_accident(self) -> None:
        constant = self._imported(numpy_helper.from_array(X, "w"))
        with pytest.raises(ValueError, match="read-only"):
            constant.values[0] = 1.0

    def test_reading_values_does_not_rewrite_them(self) -> None:
        proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
        proto.graph.initializer[0].doc_string = "kept"
        model = import_model(proto)
        assert model.graph.initializers[0].values.sum() == 3.0
        assert export_model(model) == proto

    def test_external_data_is_not_read_before_it_is_needed(self) -> None:
        tensor = TensorProto(
            name="w", data_type=1, dims=[1 << 40], data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="far too large to read")
        proto = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        proto.graph.initializer.append(tensor)
        assert export_model(import_model(proto)) == proto
