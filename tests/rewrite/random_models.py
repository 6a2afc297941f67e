"""Random models of shape arithmetic: chains of operators over tensors of open and known dims.

Most fail in some runs; the others must agree with the facts and with the rewritten model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx

from ..small_models import parse

_NAMES = ("N", "M")
_LARGE = 2**63 - 1


@dataclass
class Builder:
    """Grows one model. Values are known by their rank, as far as text generation needs it."""

    rng: np.random.Generator
    nodes: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    tensors: dict[str, int] = field(default_factory=dict)
    """Float tensors: rank."""
    vectors: dict[str, int] = field(default_factory=dict)
    """int64 vectors of a known number of elements."""
    flags: list[str] = field(default_factory=list)
    """bool vectors of one element."""
    count: int = 0

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, *numbers: int) -> str:
        name = self.name("k")
        listed = ", ".join(map(str, numbers))
        self.stored.append(f"int64[{len(numbers)}] {name} = {{{listed}}}")
        return name

    def number(self) -> int:
        return int(self.rng.choice([-3, -2, -1, 0, 1, 2, 3, 5, _LARGE, -_LARGE], p=_WEIGHTS))

    def small(self) -> int:
        return int(self.rng.integers(0, 4))

    def pick(self, values: dict[str, int], *sizes: int) -> str:
        known = [name for name, size in values.items() if not sizes or size in sizes]
        return str(self.rng.choice(known)) if known else ""

    def add(self, text: str) -> None:
        self.nodes.append(text)


_WEIGHTS = [0.1, 0.1, 0.16, 0.16, 0.16, 0.12, 0.08, 0.06, 0.04, 0.02]


def model(seed: int, length: int = 12) -> onnx.ModelProto:
    """A model that returns the last of its values."""
    build = Builder(np.random.default_rng(seed))
    inputs = []
    for name, rank in (("x", 2), ("z", 1), ("w", 3)):
        dims = [str(build.rng.choice([*_NAMES, "1", "2", "3"])) for _ in range(rank)]
        inputs.append(f"float[{', '.join(dims)}] {name}")
        build.tensors[name] = rank
    inputs += ["int64[1] v", "bool c"]
    build.vectors["v"] = 1
    while len(build.nodes) < length:
        _STEPS[int(build.rng.integers(len(_STEPS)))](build)
    made = [*_last("float", build.tensors), *_last("int64", dict.fromkeys(build.vectors, 1))]
    outputs = ", ".join(made + _last("bool", dict.fromkeys(build.flags, 1)))
    stored = f"<{', '.join(build.stored)}>" if build.stored else ""
    text = f"g ({', '.join(inputs)}) => ({outputs}) {stored} {{ {' '.join(build.nodes)} }}"
    return parse(text, 21, 10)


def _last(kind: str, ranks: dict[str, int]) -> list[str]:
    """Declarations of the last values of a kind that were computed."""
    computed = [name for name in ranks if name[-1].isdigit()][-2:]
    return [
        f"{kind}[{', '.join('?' * ranks[n])}] {n}" if ranks[n] else f"{kind} {n}" for n in computed
    ]


# --- steps on dims ---


def _shape(b: Builder) -> None:
    tensor, name = b.pick(b.tensors), b.name("s")
    b.add(f"{name} = Shape({tensor})")
    b.vectors[name] = b.tensors[tensor]


def _gather(b: Builder) -> None:
    vector, name = b.pick(b.vectors), b.name("g")
    size = b.vectors[vector]
    if not size:
        return
    index = b.constant(int(b.rng.integers(-size, size)))
    b.add(f"{name} = Gather({vector}, {index})")
    b.vectors[name] = 1


def _binary(b: Builder) -> None:
    op = b.rng.choice(["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"])
    left, name = b.pick(b.vectors), b.name("a")
    right = b.pick(b.vectors, 1, b.vectors[left]) if b.rng.random() < 0.5 else ""
    right = right or b.constant(int(b.rng.integers(-3, 6)))
    b.add(f"{name} = {op}({left}, {right})")
    sizes = b.vectors[left], b.vectors.get(right, 1)
    b.vectors[name] = max(sizes) if all(sizes) else 0


def _unary(b: Builder) -> None:
    vector, name = b.pick(b.vectors), b.name("u")
    b.add(f"{name} = {b.rng.choice(['Neg', 'Abs', 'Identity'])}({vector})")
    b.vectors[name] = b.vectors[vector]


def _join(b: Builder) -> None:
    left, right, name = b.pick(b.vectors), b.pick(b.vectors), b.name("j")
    b.add(f"{name} = Concat<axis=0>({left}, {right})")
    b.vectors[name] = b.vectors[left] + b.vectors[right]


def _compare(b: Builder) -> None:
    op = b.rng.choice(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
    left, right, name = b.pick(b.vectors, 1), b.pick(b.vectors, 1), b.name("f")
    b.add(f"{name} = {op}({left}, {right})")
    b.flags.append(name)


def _select(b: Builder) -> None:
    if b.flags:
        name = b.name("h")
        left, right = b.pick(b.vectors, 1), b.pick(b.vectors, 1)
        b.add(f"{name} = Where({b.rng.choice(b.flags)}, {left}, {right})")
        b.vectors[name] = 1


# --- steps on tensors ---


def _grow(b: Builder, name: str, rank: int, text: str) -> None:
    b.add(f"{name} = {text}")
    b.tensors[name] = rank


def _slice(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    axis = int(b.rng.integers(b.tensors[tensor]))
    step = int(b.rng.choice([1, 1, 1, 2, -1, -2]))
    start = b.constant(b.number()) if b.rng.random() < 0.7 else b.pick(b.vectors, 1)
    stop = b.constant(b.number()) if b.rng.random() < 0.7 else b.pick(b.vectors, 1)
    bounds = f"{start}, {stop}, {b.constant(axis)}, {b.constant(step)}"
    _grow(b, b.name("t"), b.tensors[tensor], f"Slice({tensor}, {bounds})")


def _concat(b: Builder) -> None:
    """A tensor and a part of itself: of operands that differ, onnxruntime takes empty ones too and
    returns whatever was in memory.
    """
    tensor, part = b.pick(b.tensors, 1, 2, 3), b.name("t")
    axis = int(b.rng.integers(b.tensors[tensor]))
    bounds = f"{b.constant(b.number())}, {b.constant(b.number())}, {b.constant(axis)}"
    _grow(b, part, b.tensors[tensor], f"Slice({tensor}, {bounds})")
    text = f"Concat<axis={axis}>({tensor}, {part})"
    _grow(b, b.name("t"), b.tensors[tensor], text)


def _arithmetic(b: Builder) -> None:
    left, right = b.pick(b.tensors), b.pick(b.tensors)
    rank = max(b.tensors[left], b.tensors[right])
    _grow(b, b.name("t"), rank, f"Add({left}, {right})")


def _reshape(b: Builder) -> None:
    tensor = b.pick(b.tensors)
    target = b.pick(b.vectors, 1, 2, 3, 4)
    if b.rng.random() < 0.5:
        parts = [b.constant(int(b.rng.choice([-1, 0, 1, 2, 3]))), b.pick(b.vectors, 1, 2)]
        target = b.name("j")
        b.add(f"{target} = Concat<axis=0>({', '.join(b.rng.permutation(parts))})")
        b.vectors[target] = 1 + b.vectors[parts[1]]
    zero = int(b.rng.integers(2))
    text = f"Reshape<allowzero={zero}>({tensor}, {target})"
    _grow(b, b.name("t"), b.vectors[target], text)


def _squeeze(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    rank = b.tensors[tensor]
    axis = int(b.rng.integers(-rank, rank))
    _grow(b, b.name("t"), rank - 1, f"Squeeze({tensor}, {b.constant(axis)})")


def _unsqueeze(b: Builder) -> None:
    tensor = b.pick(b.tensors, 0, 1, 2)
    if tensor:
        rank = b.tensors[tensor]
        axis = int(b.rng.integers(-rank - 1, rank + 1))
        _grow(b, b.name("t"), rank + 1, f"Unsqueeze({tensor}, {b.constant(axis)})")


def _transpose(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    order = b.rng.permutation(b.tensors[tensor]).tolist()
    _grow(b, b.name("t"), len(order), f"Transpose<perm={order}>({tensor})")


def _expand(b: Builder) -> None:
    tensor, target = b.pick(b.tensors), b.pick(b.vectors, 1, 2, 3)
    rank = max(b.tensors[tensor], b.vectors[target])
    _grow(b, b.name("t"), rank, f"Expand({tensor}, {target})")


def _tile(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    repeats = [b.small() for _ in range(b.tensors[tensor])]
    _grow(b, b.name("t"), len(repeats), f"Tile({tensor}, {b.constant(*repeats)})")


def _pad(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    pads = [int(b.rng.integers(0, 3)) for _ in range(2 * b.tensors[tensor])]
    _grow(b, b.name("t"), b.tensors[tensor], f"Pad({tensor}, {b.constant(*pads)})")


def _reduce(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    rank, keep = b.tensors[tensor], int(b.rng.integers(2))
    axis = b.constant(int(b.rng.integers(rank)))  # of nothing onnxruntime reduces no negative axis
    text = f"ReduceSum<keepdims={keep}>({tensor}, {axis})"
    _grow(b, b.name("t"), rank if keep else rank - 1, text)


def _split(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2, 3)
    rank = b.tensors[tensor]
    axis = int(b.rng.integers(rank))
    names = [b.name("t") for _ in range(2)]
    b.add(f"{', '.join(names)} = Split<axis={axis}, num_outputs=2>({tensor})")
    b.tensors.update(dict.fromkeys(names, rank))


def _filled(b: Builder) -> None:
    target = b.pick(b.vectors, 1, 2, 3)
    _grow(b, b.name("t"), b.vectors[target], f"ConstantOfShape({target})")


def _branch(b: Builder, condition: str, rank: int, taken: str, other: str) -> None:
    name, p, q = b.name("t"), b.name("p"), b.name("q")
    text = f"""If ({condition}) <then_branch = t () => ({p}) {{ {p} = {taken} }},
        else_branch = e () => ({q}) {{ {q} = {other} }}>"""
    _grow(b, name, rank, text)


def _if(b: Builder) -> None:
    left = b.pick(b.tensors)
    rank = b.tensors[left]
    condition = "c"
    if b.flags and b.rng.random() < 0.7:
        condition = b.name("o")
        b.add(f"{condition} = Squeeze({b.rng.choice(b.flags)})")
    _branch(b, condition, rank, f"Neg({left})", f"Exp({b.pick(b.tensors, rank)})")


def _squeeze_if(b: Builder) -> None:
    tensor = b.pick(b.tensors, 2, 3)
    rank = b.tensors[tensor]
    axis, one = b.constant(int(b.rng.integers(rank))), b.constant(1)
    s, d, f, o = (b.name("q") for _ in range(4))
    b.add(f"{s} = Shape({tensor}) {d} = Gather({s}, {axis})")
    b.add(f"{f} = Equal({d}, {one}) {o} = Squeeze({f})")
    name, p, q = b.name("t"), b.name("p"), b.name("q")
    b.add(
        f"""{name} = If ({o}) <then_branch = t () => ({p}) {{ {p} = Squeeze({tensor}, {axis}) }},
        else_branch = e () => ({q}) {{ {q} = Identity({tensor}) }}>"""
    )
    # The rank is open: what follows says what it must be, or works with any.
    later = b.name("t")
    if b.rng.random() < 0.4:
        _grow(b, later, 2, f"Gemm({name}, {name})")
    else:
        b.add(f"{later}a = Exp({name})")
        _grow(b, later, 0, f"ReduceSum<keepdims=0>({later}a)")


def _loop(b: Builder) -> None:
    tensor = b.pick(b.tensors, 1, 2)
    rank = b.tensors[tensor]
    trip, m = b.constant(b.small()), b.name("m")
    b.add(f"{m} = Squeeze({trip if b.rng.random() < 0.5 else b.pick(b.vectors, 1)})")
    i, ci, co, s, so = (b.name("l") for _ in range(5))
    body = [f"Neg({s})", f"Add({s}, {b.pick(b.tensors, rank)})", f"Concat<axis=0>({s}, {tensor})"]
    _grow(
        b,
        b.name("t"),
        rank,
        f"""Loop ({m}, , {tensor}) <body = b (int64 {i}, bool {ci}, float[] {s})
        => (bool {co}, float[] {so}) {{ {co} = Identity({ci}) {so} = {b.rng.choice(body)} }}>""",
    )


_STEPS: list[Callable[[Builder], None]] = [
    _shape, _shape, _gather, _gather, _binary, _binary, _unary, _join, _compare, _select,
    _slice, _slice, _concat, _arithmetic, _reshape, _reshape, _squeeze, _unsqueeze, _transpose,
    _expand, _tile, _pad, _reduce, _split, _filled, _if, _squeeze_if, _loop,
]  # fmt: skip
