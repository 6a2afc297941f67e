"""Hooks of mkdocs: the README is the first page, and links to the source become plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the README as the page `index.md`."""
    readme = ROOT / "README.md"
    content = _rebased(readme.read_text(), readme)
    files.append(File.generated(config, "index.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapts links to files outside of docs/."""
    name = page.file.src_uri
    return markdown if name == "index.md" else _rebased(markdown, ROOT / "docs" / name)


def _rebased(text: str, page: Path) -> str:
    """A page with links that work on the site. Raises PluginError for a broken link."""

    def target(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        path = (page.parent / link).resolve()
        if not path.exists():
            where = page.relative_to(ROOT)
            raise PluginError(f"{where} links to {link}, which does not exist")
        if path == ROOT / "README.md":
            return f"[{words}](index.md{anchor or ''})"
        if path.parent == ROOT / "docs":
            return f"[{words}]({path.name}{anchor or ''})"
        return words

    return _LINK.sub(target, text)
