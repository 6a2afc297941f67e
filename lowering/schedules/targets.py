"""What the rules of this package ask of a target."""

from __future__ import annotations

from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

from .micro_kernels import Tile, tile_for

_WIDEST = 64
"""Bytes of one AVX-512 register; also the alignment that TVM gives its tensors."""
_NARROWEST = 16
"""Bytes of a vector register of SSE and NEON."""
_WIDTHS = (("avx512f", _WIDEST), ("avx", 32))


def is_cpu(target: Target) -> bool:
    """Whether LLVM compiles kernels for the target."""
    return target.kind.name == "llvm"


def vector_bytes(target: Target) -> int:
    """The size of a vector register of the target's processor; the widest if it names none."""
    if not target.attrs.get("mcpu"):
        triple = str(target.attrs.get("mtriple", ""))
        return _NARROWEST if triple.startswith("aarch64") else _WIDEST
    widths = (size for feature, size in _WIDTHS if llvm_cpu_has_features(feature, target))
    return next(widths, _NARROWEST)


def tile_of(target: Target) -> Tile:
    """The register tile for the target."""
    return tile_for(vector_bytes(target))


