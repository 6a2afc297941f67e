"""ONNX's own test cases of single operators."""

from __future__ import annotations

import importlib
import pkgutil
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
    return [c for c in _cases() if c.model.graph.node[0].op_type in operators]


def all_node_cases() -> list[Any]:
    """The test cases of all operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for module in pkgutil.iter_modules(node.__path__):
            importlib.import_module(f"{node.__name__}.{module.name}")
    return _cases()


def _cases() -> list[Any]:
    """The test cases of the modules imported so far."""
    return [case for case in node._NodeTestCases if case.model is not None]
