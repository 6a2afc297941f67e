"""Transpositions of concatenations, against onnxruntime."""

from __future__ import annotations

import pytest

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ...comparison import check, with_weights

APART = {
    "last axis": "t = Concat <axis = 2> (x, z) y = Transpose <perm = [0, 2, 1]> (t)",
    "another axis": "t = Concat <axis = 1> (x, z) y = Transpose <perm = [2, 0, 1]> (t)",
    "all axes": "t = Concat <axis = 2> (x, z, x) y = Transpose (t)",
    "computed": "d = Sub (x, z) t = Concat <axis = 2> (d, x) y = Transpose <perm = [0, 2, 1]> (t)",
}
TOGETHER = {
    "the last axis stays": "t = Concat <axis = 2> (x, z) y = Transpose <perm = [1, 0, 2]> (t)",
}


def _kernels(nodes: str) -> list[str]:
    model = with_weights(_text(nodes), {})
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(model))
    return [variable.name_hint for variable in module.get_global_vars()]


def _text(nodes: str) -> str:
    return f"model (float[b, n, 24] x, float[b, n, 24] z) => (y) {{ {nodes} }}"


@pytest.mark.parametrize("name", APART)
def test_a_kernel_that_transposes_reads_one_tensor(name: str) -> None:
    assert not any("concatenate_transpose" in kernel for kernel in _kernels(APART[name]))
    sizes = [{"b": b, "n": n} for b, n in ((1, 1), (2, 7), (1, 64), (0, 3), (1, 0), (3, 101))]
    check(_text(APART[name]), {}, sizes)


@pytest.mark.parametrize("name", TOGETHER)
def test_one_kernel_where_lines_stay_lines(name: str) -> None:
    assert any("concatenate_transpose" in kernel for kernel in _kernels(TOGETHER[name]))
    check(_text(TOGETHER[name]), {}, [{"b": b, "n": n} for b, n in ((1, 1), (2, 7), (3, 101))])
