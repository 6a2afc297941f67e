"""Types with fewer than eight bits at the boundary of a module, in constants and in bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from looplift.lowering.small_types import STORED, resolve_small_types, stored_array
from looplift.rewrite.errors import UnsupportedError

Load = Callable[..., Any]
HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def test_the_wider_type_holds_every_value() -> None:
    for small, stored in STORED.items():
        kind = np.dtype(getattr(ml_dtypes, small))
        bits = int("".join(filter(str.isdigit, small.partition("_")[0])))
        codes = np.arange(2**bits, dtype=np.uint8).view(kind)
        held = stored_array(codes)
        assert held.dtype.name == stored
        np.testing.assert_array_equal(held.astype(np.float32), codes.astype(np.float32))


def test_inputs_constants_and_operators_that_move_elements(imported: Load) -> None:
    """A condition in a body, too, takes the type of an outer value over."""
    model = onnx.parser.parse_model(
        HEADER
        + """g (int4[n, 2] x, bool c) => (int4[m] y, float[k] z) {
            t = Transpose (x)
            flat = Constant <value_ints = [-1]> ()
            y = Reshape (t, flat)
            wide = Cast <to = 1> (w)
            big = Constant <value_float = 30.0> ()
            s = If (c) <
                then_branch = a () => (float[2, 1] s) { v = Mul (wide, big) q = CastLike (v, w)
                    s = Cast <to = 1> (q) },
                else_branch = b () => (float[2, 1] s) { s = Identity (wide) }
            >
            z = Reshape (s, flat)
        }"""
    )
    limits = np.array([[-8], [7]]).astype(ml_dtypes.int4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(limits, "w"))
    module = imported(model.SerializeToString())
    x = np.array([[1, -8], [7, 0], [-1, 2]], np.int8)
    y, z = module.run(x, np.array(True))
    np.testing.assert_array_equal(y, x.T.reshape(-1))
    np.testing.assert_array_equal(z, [0, 2])  # -240 and 210 in four bits
    np.testing.assert_array_equal(module.run(x, np.array(False))[1], [-8, 7])


def test_a_type_that_is_not_known_is_refused() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """g (float[2] x, int4[2] w) => (float[2] y) {
            h = my.domain.Unknown (w) q = CastLike (x, h) y = Cast <to = 1> (q)
        }"""
    )
    with pytest.raises(UnsupportedError, match="the type of 'h', which CastLike takes over"):
        resolve_small_types(model)


def test_a_model_without_small_types_is_not_copied() -> None:
    text = "g (float[2] x, float16[2] w) => (float16[2] y) { y = CastLike (x, w) }"
    model = onnx.parser.parse_model(HEADER + text)
    assert resolve_small_types(model) is model
