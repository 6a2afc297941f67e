"""Hostile options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .case import MODEL, PLAIN_FILE, REWRITE, Case

_HUGE = str(2**63)
_LONG = "9" * 5000
_NO_SIZES = ("", "N", "N=", "=3", "N=x", "N=-1", "N=1.5", "N=0x10", "N>3", "N<=3", "N=1=2", "N 3")
_NO_NUMBERS = ("", "x", "1.5", "-1", "0x10", "1e3", "--", "nan", "[1]", "1,2", _LONG + "x")
_INPUTS = (
    ("", "has no value"),
    ("x", "has no value"),
    ("=1", "has no value"),
    ("nosuch=1", "no input"),
    ("z=1,2,3", "shape"),
    ("z=[[[[", "z"),
    ("z=" + "[" * 3000, "z"),
    ("z=@missing.npy", "No array can be read"),
    ("z=@.", "No array can be read"),
    ("z=@text.npy", "No array can be read"),
    ("z=@promise.npy", "No array can be read"),
    ("z=@objects.npy", "No array can be read"),
    ("z=@fifo.npy", "is not a file"),
    ("z=word", "z"),
    ("z=" + _LONG, "z"),
    ("z={1: 2}", "z"),
)
_SHAPES = (
    ("", "has no value"),
    ("x", "has no value"),
    ("nosuch=1", "no input"),
    ("z=3", "cannot be 3"),
    ("z=2,2", "rank 1"),
    (f"x={_HUGE}", "2^63"),
    (f"x={_LONG}", "2^63"),
    (f"x=-{_HUGE}1", "2^63"),
    ("x=-1", "x"),
)


def cases() -> Iterator[Case]:
    for command in ("rewrite", "inspect", "explain", "verify", "check", "bisect", "report"):
        output = ("-o", "out") if command in ("rewrite", "report") else ()
        yield _call(
            f"{command} --dim beyond int64",
            (command, MODEL, *output, "--dim", f"N={_HUGE}"),
            "2^63",
        )
        yield _call(f"{command} --seed", (command, MODEL, *output, "--nosuch"), "No such option")
    for text in _NO_SIZES:
        yield _option("--dim", text, "does not assert a dim")
    yield _option("--dim", f"N={_LONG}", "2^63")
    yield _option("--dim", f"N>={_HUGE}", "2^63")
    for text, words in _INPUTS:
        yield _option("--input", text, words)
    for text, words in _SHAPES:
        yield _option("--shape", text, words)
    for option in ("--steps", "--jobs", "--seed"):
        for text in _NO_NUMBERS:
            yield _option(option, text, "Invalid value")
    for text in (_HUGE, _LONG[:19]):
        yield _option("--seed", text, "Invalid value")
    for text in ("0", "-1", "x", "", "0.0"):
        yield _option("--time-limit", text, "Invalid value")
    for text in ("nosuch", "nosuch axis 0", "x axis 7", "x axis 99999999999999999999"):
        yield _option("--prefix-mask", text, "x" if text.startswith("x") else "nosuch")
    for text in ("nosuch", "..", "", "a.b.c", "os", "x" * 300, "1", "a b", "../x", "json"):
        yield _option("--rules", text, "module of rules")
    for text in ("dim", "dim N", "x", "", "input", "shape x", "dim N>3"):
        yield _call(f"--assume {text!r}", ("explain", MODEL, "--assume", text))
    for text in ("x", "1;2", "-1", "1,,2", _LONG):
        yield _call(f"--size {text[:9]!r}", ("check", MODEL, "--no-tvm", "--size", f"N={text}"))
    for target in ("x" * 300, "missing/out.onnx", ".", "fifo.npy", "/proc/out.onnx", "/dev/null"):
        yield _call(f"-o {target[:20]}", ("rewrite", MODEL, "-o", target, "--no-verify"))
    for name in ("x" * 300, "x" * 5000, "missing.onnx", "missing/m.onnx", "text.npy", "."):
        yield _call(f"IN {name[:20]} of {len(name)}", ("rewrite", name, "-o", "out.onnx"))


def _option(option: str, text: str, *words: str) -> Case:
    return _call(f"{option} {text[:20]!r}", (*REWRITE, option, text), *words)


def _call(name: str, arguments: tuple[str, ...], *words: str) -> Case:
    return Case(name, _write, arguments, 2, words)


def _write(folder: Path) -> None:
    PLAIN_FILE(folder)
    (folder / "text.npy").write_text("no array")
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    padded = header.ljust(117) + "\n"
    (folder / "promise.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()
    )
    (folder / "objects.npy").write_bytes(
        (folder / "promise.npy").read_bytes().replace(b"<f8", b"|O8")
    )
    os.mkfifo(folder / "fifo.npy")
