"""How errors of libraries are quoted."""

from __future__ import annotations

import pytest

from looplift.rewrite.errors import summary_line


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        ("a size is negative\nmore", "a size is negative"),
        ("", "RuntimeError"),
        ('Traceback (most recent call last):\n  File "x.cc", line 1\nno memory', "no memory"),
        (
            "compilation failed:\n\n  x.cu(3): error: no such type\n",
            "compilation failed: x.cu(3): error: no such type",
        ),
        ("compilation failed:\n", "compilation failed:"),
        ("Check failed: (n < (1 << 31)) is false: n is too large", "n is too large"),
        ("Check failed: pb->value != 0 (0 vs. 0) : Divide by zero", "Divide by zero"),
        ("Check failed: (n < 3) is false: ", "Check failed: (n < 3) is false:"),
    ],
)
def test_a_message_in_one_line(message: str, summary: str) -> None:
    assert summary_line(RuntimeError(message)) == summary
