"""ONNX's own test cases of single operators."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from onnx.backend.test.case import node


def node_cases(*operators: str) -> list[Any]:
    """The test cases whose first node is one of these operators.

    Imports only the modules of these operators: a module computes its cases when it is imported,
    which takes seconds for all of them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for operator in operators:
            importlib.import_module(f"{node.__name__}.{operator.lower()}")
    cases = node._NodeTestCases
    return [c for c in cases if c.model is not None and c.model.graph.node[0].op_type in operators]
