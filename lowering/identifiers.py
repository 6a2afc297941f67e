"""Turns names of a model into identifiers for TVMScript and for the C++ code of kernels."""

from __future__ import annotations

import keyword
import re

_KEYWORDS_OF_CPP = {
    "alignas", "alignof", "auto", "bool", "case", "catch", "char", "const", "constexpr",
    "default", "delete", "do", "double", "enum", "explicit", "export", "extern", "float",
    "friend", "goto", "inline", "int", "long", "mutable", "namespace", "new", "noexcept",
    "operator", "private", "protected", "public", "register", "short", "signed", "sizeof",
    "static", "struct", "switch", "template", "this", "throw", "typedef", "typeid", "typename",
    "union", "unsigned", "using", "virtual", "void", "volatile",
}  # fmt: skip


def identifier(name: str, prefix: str) -> str:
    """The name with `_` for characters that an identifier cannot hold, and after a keyword.

    `prefix` comes before a name that does not start with a letter.
    """
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not cleaned[:1].isalpha():
        cleaned = prefix + cleaned
    is_keyword = keyword.iskeyword(cleaned) or cleaned in _KEYWORDS_OF_CPP
    return f"{cleaned}_" if is_keyword else cleaned
