"""Renders a report as one HTML file that contains its styles, scripts, libraries and data.

Names, doc strings and constants of a model reach the page as text only: Jinja2 escapes them in
HTML, and the data for the scripts is JSON whose `<` is escaped, so that no name can end the element
that contains it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ...rewrite.storage.output_files import write_text
from ...rewrite.storage.summary import rows
from .build import ReportData
from .rule_sources import highlighting
from .story import BOOKKEEPING, bars, bookkeeping, rules_in_order, stories

SCRIPTS = ("history", "regions", "layout", "drawing", "lists", "details", "search", "page")
"""The scripts of the page, each after those that it uses."""


class Library(NamedTuple):
    """A library from registry.npmjs.org that the page contains; see `assets/README.md`."""

    name: str
    version: str
    file: str
    licence: str


LIBRARIES = (
    Library("d3", "7.9.2", "d3.min.js", "d3.LICENSE"),
    Library("@dagrejs/dagre", "3.1.3", "dagre.min.js", "dagre.LICENSE"),
)

MOST_NODES = 12
"""The control-flow nodes that the first screen lists; the others can be unfolded."""
MOST_BOOKKEEPING = 20
"""More bookkeeping commits than these are hidden in the list until the reader asks for them."""


def render(report: ReportData) -> str:
    """The page."""
    tidy = frozenset(n for n, c in enumerate(report.commits, 1) if c["rule"] in BOOKKEEPING)
    page = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            report=report,
            counts=rows((report.before, report.after)),
            stories=stories(report.explanation, report.commits),
            steps=rules_in_order(report.commits),
            bookkeeping=bookkeeping(report.commits),
            hidden=tidy if len(tidy) > MOST_BOOKKEEPING else frozenset(),
            bars=bars(report.before, report.after),
            data=_data(report),
            style=_style(),
            scripts=[_asset(f"{name}.js") for name in SCRIPTS],
            libraries=[
                (library, _asset(library.file), _asset(library.licence)) for library in LIBRARIES
            ],
            version=version("looplift"),
            most=MOST_NODES,
        )
    )
    return page + "\n"


def write(report: ReportData, path: Path) -> None:
    """Writes the page whole or not at all. Raises ModelError if it cannot be written."""
    write_text(path, render(report), "The report")


def _data(report: ReportData) -> dict[str, Any]:
    """The data that the scripts draw; everything else in the page is HTML."""
    return {
        "commits": report.commits,
        "remaining": [each["number"] for each in report.remaining],
        "history": report.history,
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A browser's JSON parser does not accept NaN.
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"),
        "ensure_ascii": False,
        "allow_nan": False,
    }
    environment.filters["milliseconds"] = _milliseconds
    environment.filters["duration"] = _duration
    return environment


def _milliseconds(seconds: float, digits: int = 1) -> str:
    return f"{seconds * 1000:,.{digits}f}"


def _duration(seconds: float) -> str:
    """Three digits: `0.18 ms`, `53.2 ms`, `4.08 s`."""
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _style() -> str:
    """The style sheet, with the colours of highlighted source for both themes."""
    dark = highlighting("github-dark", ":root[data-theme=dark] .code")
    return "\n".join((_asset("report.css"), highlighting("friendly", ".code"), dark))


@cache
def _asset(name: str) -> str:
    folder = "assets" if name.endswith((".min.js", ".LICENSE")) else "front"
    return (files(__package__) / folder / name).read_text(encoding="utf-8")
