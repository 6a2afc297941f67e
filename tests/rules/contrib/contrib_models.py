"""A model of one node of com.microsoft, its rewrite, and what both compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from looplift import rewrite

from ...equivalence import assert_equal, ops, outcome, session

Arrays = Mapping[str, np.ndarray | None]
RNG = np.random.default_rng(7)


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def one_node(
    op: str,
    operands: Arrays,
    outputs: int = 1,
    *,
    read: Sequence[int] = (0,),
    opset: int = 17,
    domain: str = "com.microsoft",
    symbolic: bool = True,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. The sizes of the inputs are symbolic except for the last axis.

    `read` are the outputs of the node that the model returns.
    """
    results = [f"y{k}" if k in read else f"unread{k}" for k in range(outputs)]
    names = [name if value is not None else "" for name, value in operands.items()]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    inputs = []
    for name, value in operands.items():
        if value is not None:
            fixed = value.shape[-1:] if symbolic and value.ndim > 1 else value.shape
            open_axes = [f"{name}_{axis}" for axis in range(value.ndim - len(fixed))]
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            inputs.append(helper.make_tensor_value_info(name, dtype, [*open_axes, *fixed]))
    returned = [helper.make_empty_tensor_value_info(results[k]) for k in read]
    graph = helper.make_graph([node], "g", inputs, returned)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def assert_decomposed(model: onnx.ModelProto, feed: Arrays, tolerance: float = 1e-5) -> None:
    """Asserts that no node of another domain is left, and that the results are the same."""
    result = rewrite(model)
    assert result.report.defects == []
    assert all(not node.domain for node in result.model.graph.node), ops(result.model)
    given = {name: value for name, value in feed.items() if value is not None}
    expected, actual = (outcome(session(m), given) for m in (model, result.model))
    assert expected is not None
    assert actual is not None
    assert_equal(expected, actual, tolerance)


def assert_kept(model: onnx.ModelProto) -> None:
    """Asserts that the node stays as it is."""
    result = rewrite(model)
    assert any(node.domain == "com.microsoft" for node in result.model.graph.node)
