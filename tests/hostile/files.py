"""Hostile files: damaged, forged, endless, or much larger than they look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from .case import MODEL, PLAIN, REWRITE, VERIFIED, Case, file, model

_INSPECT = ("inspect", MODEL)
_LOOP = """g (float[2] x, int64 n, bool c) => (float[2] y) { k = Identity(c) r = Loop (n, k, x)
  <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so) { so = Sin(s) co = And(ci, k) }>
  y = Neg(r) }"""


def cases() -> Iterator[Case]:
    yield from _cut()
    yield from _names()
    yield from _types()
    yield from _functions()
    yield from _external()
    yield from _special()
    yield from _bombs()


def _cut() -> Iterator[Case]:
    """The file is cut short in the middle of the graph, or has other bytes before or after it."""
    data = model(_LOOP).SerializeToString()
    start = data.index(model(_LOOP).graph.SerializeToString()[:20])
    for end in range(start + 1, len(data) - 8, max(1, len(data) // 40)):
        yield Case(f"cut after {end} bytes", file(data[:end]), words=("ONNX",))
    for junk in (
        b"\x00",
        b"\xff" * 9,
        b"{}",
        b"PK\x03\x04",
        b"\xff\x04",
        b"\x1f\x8b",
        b"GGUF",
        b"<html>",
    ):
        yield Case(f"begins with {junk[:4]!r}", file(junk + data), words=("ONNX",))
    yield Case("an unfinished number at the end", file(data + b"\xff" * 11), words=("ONNX",))


def _names() -> Iterator[Case]:
    """Names that a terminal would interpret, and names that are not text."""
    characters = [*range(1, 32), 127, 0x85, 0x9B, 0x2028, 0x2029, 0x202E, 0x2066, 0xFEFF, 0xE0001]
    for code in characters:
        name = f"v{chr(code)}note: all is well"
        dropped = chr(code) in "\a\b\v\f\r"  # by rich
        shown = "vnote" if dropped else chr(code).encode("unicode_escape").decode()
        yield Case(f"the character {code:#x} in names", file(_renamed(name)), _INSPECT, 0, (shown,))
    long = "n" * 100_000
    yield Case("a name of 100,000 characters", file(_renamed(long)), _INSPECT, 0, ("nnn",))
    for field in ("op_type", "name", "domain", "input", "output", "dim_param", "doc_string"):
        yield Case(
            f"{field} that is not UTF-8",
            file(_not_utf8(field)),
            words=(r"\xff" if field == "input" else "UTF-8",),
        )


def _renamed(name: str) -> onnx.ModelProto:
    found = model(_LOOP)
    loop = found.graph.node[1]
    loop.name = loop.output[0] = found.graph.node[2].input[0] = name
    found.graph.input[1].name = loop.input[0] = f"{name}!"
    return found


def _not_utf8(field: str) -> bytes:
    found, mark = model(), "QQQQ"
    node = found.graph.node[0]
    if field in ("input", "output"):
        getattr(node, field)[0] = mark
    elif field == "dim_param":
        found.graph.input[0].type.tensor_type.shape.dim[0].dim_param = mark
    else:
        setattr(node, field, mark)
    return bytes(found.SerializeToString()).replace(mark.encode(), b"\xff\xfe\xc0\x80")


def _types() -> Iterator[Case]:
    """Element types and shapes that do not exist or cannot be computed."""
    for element in (77, 99, 999, 2**31 - 1, -1, -(2**31)):
        yield Case(f"element type {element}", file(_declared(element)), words=("element type",))
        yield Case(
            f"a tensor of type {element}", file(_stored(element, [2])), words=("element type",)
        )
    for rank in (65, 66, 100, 1000, 100_000):
        yield Case(f"{rank} axes", file(_declared(1, [1] * rank)), words=(f"{rank} axes",))
    for size in (2**31, 2**40, 2**62, 2**63 - 1):
        found = file(_declared(1, [size]))
        yield Case(f"an input of size {size}", found, VERIFIED, 0, ("not verified",))
        yield Case(f"a tensor of size {size}", file(_stored(1, [size])), VERIFIED, 2)
    for size in (-1, -7, -(2**63)):
        yield Case(
            f"an input of size {size}", file(_declared(1, [size])), VERIFIED, 0, ("verified",)
        )


def _declared(element: int, dims: list[int] | None = None) -> onnx.ModelProto:
    found = model(_LOOP)
    for info in (found.graph.input[0], found.graph.output[0]):
        info.type.tensor_type.elem_type = element
        if dims is not None:
            info.CopyFrom(helper.make_tensor_value_info(info.name, element, dims))
    if dims is not None:
        for info in (
            *found.graph.node[1].attribute[0].g.input[2:],
            *found.graph.node[1].attribute[0].g.output[1:],
        ):
            info.type.tensor_type.ClearField("shape")
    return found


def _stored(element: int, dims: list[int]) -> onnx.ModelProto:
    found = model("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    found.graph.initializer.add(name="w", dims=dims, data_type=element, raw_data=b"12345678")
    return found


def _functions() -> Iterator[Case]:
    for length in (1, 2, 5):
        calls = {f"F{i}": [f"F{(i + 1) % length}"] for i in range(length)}
        yield Case(
            f"{length} functions that call each other", file(_calls(calls)), words=("calls itself",)
        )
    for depth in (101, 500, 2000):
        calls = {f"F{i}": [f"F{i + 1}"] if i < depth else [] for i in range(depth + 1)}
        yield Case(f"calls {depth} deep", file(_calls(calls)), words=("deep",))
    for doublings in (22, 31, 60, 90):
        calls = {f"F{i}": [f"F{i + 1}"] * 2 if i < doublings else [] for i in range(doublings + 1)}
        yield Case(
            f"2^{doublings} calls", file(_calls(calls)), words=("after its functions are inlined",)
        )
    twice = _calls({"F0": []})
    twice.functions.append(twice.functions[0])
    yield Case("two functions of one name", file(twice), words=("two functions",))


def _calls(calls: dict[str, list[str]]) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    found = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    found.opset_import.add(domain="f", version=1)
    found.graph.node[0].op_type, found.graph.node[0].domain = "F0", "f"
    for name, called in calls.items():
        nodes, last = [], "a"
        for number, other in enumerate(called):
            nodes.append(helper.make_node(other, [last], [f"t{number}"], domain="f"))
            last = f"t{number}"
        nodes.append(helper.make_node("Neg", [last], ["b"]))
        found.functions.append(helper.make_function("f", name, ["a"], ["b"], nodes, opsets))
    return found


def _external() -> Iterator[Case]:
    """External data that is not in the folder of the model, whatever links say."""
    outside = (
        "../secret",
        "..",
        "/etc/passwd",
        "",
        "a/../../secret",
        "./../secret",
        "//etc/passwd",
    )
    for location in outside:
        yield Case(f"data at {location!r}", _data(location), words=("not in the folder",))
    nul = file(_weights("a\0b"))
    yield Case("data at a name with NUL", nul, words=("contains a NUL character",))
    for location, target in {
        "w.bin": "../secret",
        "a/w.bin": "../../secret",
        "b/c": "/etc/passwd",
    }.items():
        yield Case(
            f"a link {location} to {target}", _data(location, target), words=("is a link to",)
        )
        follow = (*REWRITE, "--follow-links")
        yield Case(f"{location} followed to {target}", _data(location, target), follow, 0)
    yield Case("a link inside of the folder", _data("w.bin", "sub/inner"), REWRITE, 0)
    yield Case("a link to itself", _data("w.bin", "w.bin"), words=("w.bin",))
    yield Case("a link to nothing", _data("w.bin", "nothing"), words=("missing",))
    yield Case("a link to a device", _data("w.bin", "/dev/zero"), words=("is a link to",))
    yield Case(
        "the cache of a hub",
        _hub,
        ("rewrite", "hub/snapshots/a/model.onnx", "-o", "out.onnx", "--time-limit", "5"),
        0,
        ("verified: equal",),
    )
    for key, value in (
        ("offset", "-1"),
        ("offset", "x"),
        ("length", "-5"),
        ("length", "9" * 30),
        ("offset", str(2**63)),
    ):
        yield Case(f"{key} {value[:9]}", _data("w.bin", **{key: value}), words=("external data",))


def _weights(location: str, **entries: str) -> onnx.ModelProto:
    found = model("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    tensor = found.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return found


def _data(location: str, target: str = "", **entries: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file(_weights(location, **entries))(folder)
        (folder.parent / "secret").write_bytes(bytes(8))
        (folder / "sub").mkdir()
        (folder / "sub" / "inner").write_bytes(bytes(8))
        path = folder / location
        if target:
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(target)
        elif entries:
            path.write_bytes(bytes(8))

    return write


def _hub(folder: Path) -> None:
    blobs, snapshot = folder / "hub" / "blobs", folder / "hub" / "snapshots" / "a"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1").write_bytes(_weights("model.data").SerializeToString())
    (blobs / "2").write_bytes(bytes(8))
    (snapshot / MODEL).symlink_to("../../blobs/1")
    (snapshot / "model.data").symlink_to("../../blobs/2")


def _special() -> Iterator[Case]:
    """What is named is no file."""
    yield Case("a pipe", lambda folder: os.mkfifo(folder / MODEL), words=("device or pipe",))
    for device in ("/dev/zero", "/dev/urandom", "/dev/null", "/dev/tty"):
        if Path(device).exists():
            arguments = ("rewrite", device, "-o", "out.onnx")
            yield Case(device, lambda _: None, arguments, words=("device or pipe",))
    yield Case("a link to itself as model", lambda folder: (folder / MODEL).symlink_to(MODEL))
    yield Case("a link to nothing as model", lambda folder: (folder / MODEL).symlink_to("x"))
    yield Case(
        "a link to a device as model", lambda folder: (folder / MODEL).symlink_to("/dev/zero")
    )
    yield Case("a folder named like a model", lambda folder: (folder / MODEL).mkdir())
    yield Case("an empty file", file(b""), words=("empty",))


def _bombs() -> Iterator[Case]:
    """Small files with gigabytes of intermediate values."""
    doubled = " ".join(f"a{i + 1} = Concat<axis = 0>(a{i}, a{i})" for i in range(60))
    text = f"g (float[N] x) => (float[N] y, float[K] z) <float[2] a0 = {{1, 2}}> {{ {doubled} y = Neg(x) z = Neg(a{{}}) }}"
    for count in (25, 40, 60):
        yield Case(f"{count} doublings", file(model(text.replace("{}", str(count)))), REWRITE, 0)
    for size in (10**6, 10**9, 10**12, 2**62):
        for node in (
            "ConstantOfShape(n)",
            "Expand(one, n)",
            "OneHot(zero, n0, two)",
            "Range(zero0, n0, one0)",
        ):
            body = f"""g (float[N] x) => (float[N] y, float z) <int64[1] n = {{{size}}}, int64 n0 = {{{size}}},
              float[1] one = {{1}}, int64[1] zero = {{0}}, int64 zero0 = {{0}}, int64 one0 = {{1}}, float[2] two = {{0, 1}}> {{
              b = {node} c = Cast<to = 1>(b) z = ReduceSum<keepdims = 0>(c) y = Neg(x) }}"""
            yield Case(f"{node} of {size}", file(model(body)), REWRITE, 0)
    for count in (2**40, 2**62, 2**63 - 1):
        loop = f"""g (float[2] x) => (float[2] y) <int64 n = {{{count}}}> {{ y = Loop (n, , x) <body = b (int64 i, bool c, float[2] s)
          => (bool co, float[2] t) {{ co = Identity(c) p = Sin(s) t = Cos(p) }}> }}"""
        yield Case(
            f"a loop of {count} iterations",
            file(model(loop)),
            VERIFIED,
            0,
            ("not verified", "does not end"),
        )
    nested = "x2 = Neg(x)"
    for depth in range(20):
        nested = f"r{depth} = If (c) <then_branch = t{depth} () => (float[N] p{depth}) {{ {nested} p{depth} = Neg(x) }}, else_branch = e{depth} () => (float[N] q{depth}) {{ q{depth} = Abs(x) }}>"
    yield Case(
        "20 nested Ifs",
        file(model(f"g (float[N] x, bool c) => (float[N] y) {{ {nested} y = Neg(x) }}")),
        REWRITE,
        0,
    )
    yield Case("5,000 nodes", file(_chain(5_000)), _INSPECT, 0)


def _chain(count: int) -> onnx.ModelProto:
    found = model(PLAIN)
    del found.graph.node[:]
    found.graph.node.extend(
        helper.make_node("Neg", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(count)
    )
    found.graph.node.append(helper.make_node("Tanh", [f"v{count}"], ["y"]))
    return found
