"""The loop nests that rules see of a kernel."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from looplift.lowering.scheduling.kernels.nests import nests_of


@pytest.mark.parametrize(
    ("size", "is_divided"), [(24, False), (36, True), (0, True)], ids=["within", "beyond", "empty"]
)
def test_divisions_that_known_extents_make_redundant(size: int, is_divided: bool) -> None:
    """A nest without elements stays as it is: TVM's simplifier refuses a division by its extent."""
    x = te.placeholder((24,), "float32", "x")
    y = te.compute((size,), lambda i: x[i % 24], "y")
    (nest,) = nests_of(te.create_prim_func([x, y])) or ()
    assert isinstance(nest.value.indices[0], tirx.FloorMod) == is_divided
    assert nest.is_empty == (size == 0)


def test_a_tensor_of_rank_0_is_a_nest_of_one_element() -> None:
    x = te.placeholder((), "float32", "x")
    y = te.compute((), lambda: x() * 2, "y")
    (nest,) = nests_of(te.create_prim_func([x, y])) or ()
    assert [int(extent) for extent in nest.extents] == [1]
