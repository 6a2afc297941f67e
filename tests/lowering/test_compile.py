"""The target that stands for this processor."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import tvm
from tvm.target import codegen

import looplift
from looplift.lowering.compile import as_target
from looplift.rewrite.errors import LoopliftError


def _features(target: tvm.target.Target) -> set[str]:
    return set(codegen.llvm_get_cpu_features(target))


def test_native_has_the_features_of_this_processor() -> None:
    here = tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    assert _features(as_target("native")) == _features(here)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs LLVM's model of an x86 processor")
@pytest.mark.parametrize(("processor", "level"), [("znver2", "x86-64-v3"), ("znver4", "x86-64-v4")])
def test_zen_is_a_generic_processor_with_its_features(
    monkeypatch: pytest.MonkeyPatch, processor: str, level: str
) -> None:
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: processor)
    native = as_target("native")
    assert native.attrs["mcpu"] == level
    assert _features(native) == _features(tvm.target.Target({"kind": "llvm", "mcpu": processor}))


def test_a_target_that_tvm_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    find = tvm.get_global_func

    def without_cuda(name: str, allow_missing: bool = False) -> Any:
        return None if name == "target.build.cuda" else find(name, allow_missing)

    monkeypatch.setattr(tvm, "get_global_func", without_cuda)
    with pytest.raises(LoopliftError, match="built without a code generator for 'cuda'"):
        looplift.compile(tvm.IRModule({}), {"kind": "cuda", "arch": "sm_90"})
