"""Calls between the functions of a loop are checked only where types do not prove that they fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from looplift.lowering import emit
from looplift.lowering.loops.roles import LOOP_PART, NEXT
from looplift.lowering.scheduling.pipeline import looplift_pipeline
from looplift.lowering.scheduling.relax.internal_calls import mark_proven_arguments
from looplift.lowering.values import fresh_dim

from ...compiled import compile_quickly, virtual_machine
from ...conftest import parse
from ...test_transform import WHILE

CHECKS = ("check_tensor_info", "check_tuple_info", "check_shape_info")


def _text(executable: Any, function: str) -> str:
    """The instructions of one function."""
    _, _, text = executable.as_text().partition(f"@{function}:\n")
    return str(text.partition("\n\n")[0])


def test_the_functions_of_a_loop_do_not_check_each_other() -> None:
    pipeline = looplift_pipeline(fuse_loops=False)
    executable = compile_quickly(emit(parse(WHILE)), relax_pipeline=pipeline)
    assert "check_tensor_info" in _text(executable, "main")
    for function in ("y_next", "y_repeat"):
        text = _text(executable, function)
        assert "call  y_" in text or "call  fused_" in text
        assert not any(check in text for check in CHECKS)
    machine = virtual_machine(executable)
    x = np.ones(3, np.float32)
    y = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.float32(20))).numpy()
    np.testing.assert_array_equal(y, np.full(3, 7, np.float32))


def _module(first: Any, second: Any) -> tvm.IRModule:
    """`main` passes tensors of these types to a function that needs two of one size."""
    bb = relax.BlockBuilder()
    n = fresh_dim("n")
    params = [relax.Var(name, relax.TensorType([n], "float32")) for name in ("x", "y")]
    with bb.function("part", params, {LOOP_PART: NEXT}, private=False):
        with bb.dataflow():
            total = bb.emit_output(relax.op.add(*params))
        part = bb.emit_func_output(total)
    given = [relax.Var(name, kind) for name, kind in (("x", first), ("y", second))]
    with bb.function("main", given, private=False):
        with bb.dataflow():
            result = bb.emit_output(relax.Call(part, given))
        bb.emit_func_output(result)
    return bb.get()


@pytest.mark.parametrize(
    ("sizes", "is_proven"), [(("m", "m"), True), (("m", "k"), False), (("m", None), False)]
)
def test_what_types_do_not_prove_is_checked(
    sizes: tuple[str | None, str | None], is_proven: bool
) -> None:
    symbols: dict[str | None, Any] = {name: fresh_dim(name) for name in sizes if name}
    kinds = [
        relax.TensorType(None, "float32", ndim=1)
        if name is None
        else relax.TensorType([symbols[name]], "float32")
        for name in sizes
    ]
    module = _module(*kinds)
    marked = mark_proven_arguments(relax.transform.Normalize()(module))
    assert ("looplift.arguments_proven" in (marked["part"].attrs or {})) is is_proven
    executable = compile_quickly(module, relax_pipeline="looplift")
    machine = virtual_machine(executable)
    two, three = (tvm.runtime.tensor(np.ones(size, np.float32)) for size in (2, 3))
    np.testing.assert_array_equal(machine["main"](two, two).numpy(), np.full(2, 2, np.float32))
    with pytest.raises(Exception, match=r"(?i)shape|match"):
        machine["main"](two, three)
