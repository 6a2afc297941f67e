"""Hooks of mkdocs: the README is the first page, and links to the source become plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the README as the page `index.md`."""
    text = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=_rebased(text, ROOT)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapts links to files outside of docs/."""
    return markdown if page.file.src_uri == "index.md" else _rebased(markdown, ROOT / "docs")


def _rebased(text: str, folder: Path) -> str:
    """A page of a folder with links that work on the site. Raises ValueError for a broken link."""

    def target(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        path = (folder / link).resolve()
        if not path.exists():
            raise ValueError(f"a link leads to {link}, which does not exist")
        if path == ROOT / "README.md":
            return f"[{words}](index.md{anchor or ''})"
        if path.parent == ROOT / "docs":
            return f"[{words}]({path.name}{anchor or ''})"
        return words

    return _LINK.sub(target, text)
