"""Names that are identifiers in Python and in C++, as texts of modules and of kernels need them."""

from __future__ import annotations

import keyword
import re


def identifier(name: str, prefix: str) -> str:
    """The name as Python and C++ take it; `prefix` comes before what is no letter at its start."""
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not cleaned[:1].isalpha():
        cleaned = prefix + cleaned
    return f"{cleaned}_" if keyword.iskeyword(cleaned) else cleaned
