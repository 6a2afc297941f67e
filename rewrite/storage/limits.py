"""The newest IR version and opsets that the installed onnxruntime accepts, found by trying."""

from __future__ import annotations

from functools import cache

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail


@cache
def newest_ir() -> int:
    """The newest IR version that onnxruntime accepts; onnx itself may write a newer one."""
    candidates = range(onnx.IR_VERSION, 0, -1)
    return next(version for version in candidates if _loads(version, "", 7))


@cache
def newest_opset(domain: str = "") -> int:
    """The newest version of a standard operator set that onnxruntime accepts; 0 if none."""
    newest = onnx.defs.onnx_opset_version() if domain == "" else 16
    return next((v for v in range(newest, 0, -1) if _loads(newest_ir(), domain, v)), 0)


def _loads(ir_version: int, domain: str, opset: int) -> bool:
    """Whether onnxruntime accepts a model of one node with these versions."""
    imports = {"": 7, domain: opset}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(
        graph,
        ir_version=ir_version,
        opset_imports=[helper.make_opsetid(*entry) for entry in imports.items()],
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Fail:
        return False
    return True
