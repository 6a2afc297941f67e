"""The processor that kernels are written for, and the size of its vector registers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm
from tvm.target.codegen import llvm_cpu_has_features

GRAIN = 1 << 20
"""Multiply-adds below which a kernel stays on one core. They take 20 microseconds, and handing half
of them to another core takes several."""
MOST_VECTOR_BYTES = 64
"""One AVX-512 register, two AVX registers; also the alignment TVM gives its tensors."""
_LEAST_VECTOR_BYTES = 16
"""SSE and NEON."""
_SIZES = (("avx512f", MOST_VECTOR_BYTES), ("avx", 32))
"""The bytes of a vector register by processor feature, largest first."""


def is_for_gpu() -> bool:
    """Whether the target in scope is a GPU."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys


def is_for_llvm() -> bool:
    """Whether LLVM compiles for the target in scope, as it does where there is none.

    The code for other CPUs, such as C source, knows neither vectors nor threads.
    """
    target = tvm.target.Target.current(allow_none=True)
    return target is None or target.kind.name == "llvm"


_ALIASES = {"arm64": "aarch64", "amd64": "x86_64", "x86_64h": "x86_64"}
"""Other names of architectures in target triples."""


def architecture(target: Any) -> str:
    """The architecture in the target's triple; this machine's if the target names no triple."""
    name = _triple(target).partition("-")[0]
    return _ALIASES.get(name, name)


def is_for_linux(target: Any) -> bool:
    """Whether the target is Linux other than Android, whose C library has fewer functions."""
    triple = _triple(target)
    return "linux" in triple and "android" not in triple


def _triple(target: Any) -> str:
    given = str(target.attrs.get("mtriple", ""))
    return given or str(tvm.target.codegen.llvm_get_system_triple())


def vector_bytes() -> int:
    """The bytes of a vector register of the processor that the target in scope names.

    Without a target it is the largest size. A kernel for larger registers than the processor has
    still works, but may need more registers than there are and is slower then.
    """
    target = tvm.target.Target.current(allow_none=True)
    return MOST_VECTOR_BYTES if target is None else _vector_bytes(target)


@lru_cache(maxsize=8)  # Each kernel asks several times, and each answer is a query of LLVM.
def _vector_bytes(target: Any) -> int:
    if architecture(target) == "aarch64":
        return _LEAST_VECTOR_BYTES
    if not target.attrs.get("mcpu"):
        return MOST_VECTOR_BYTES
    known = (size for feature, size in _SIZES if llvm_cpu_has_features(feature, target))
    return next(known, _LEAST_VECTOR_BYTES)


def has_features(*features: str) -> bool:
    """Whether the target in scope names an x86 processor, and that has some features."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and _has_features(target, features)


@lru_cache(maxsize=32)
def _has_features(target: Any, features: tuple[str, ...]) -> bool:
    if architecture(target) not in ("x86_64", "i686") or not target.attrs.get("mcpu"):
        return False
    return all(llvm_cpu_has_features(feature, target) for feature in features)
