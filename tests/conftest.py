"""The environment of all tests, and the folders of larger collections of models.

A test that needs a folder that is missing is skipped.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

# TVM binds its threads to the first cores, which the processes that run tests would share.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# TVM keeps the libraries of all tests loaded, each with its threads.
os.environ.setdefault("TVM_NUM_THREADS", "1")

# Models and modules are many objects in few cycles: most collections would find nothing.
gc.set_threshold(100_000, 20, 20)

_COLLECTIONS = Path(__file__).parents[2] / "shared"


def _folder(variable: str, name: str) -> Path:
    path = Path(os.environ.get(variable, _COLLECTIONS / name))
    if not path.is_dir():
        pytest.skip(f"no folder {path}; set {variable} to a folder of ONNX models")
    return path


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Models of many exporters, each `NAME.onnx` with inputs and outputs in `NAME.npz`."""
    return _folder("LOOPLIFT_CORPUS", "corpus")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """A few published models."""
    return _folder("LOOPLIFT_MODELS", "models")


@pytest.fixture(scope="session")
def matrix_dir() -> Path:
    """Small models with one If, Loop or Scan each."""
    return _folder("LOOPLIFT_MATRIX", "matrix")
