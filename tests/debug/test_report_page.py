"""The page of a report in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from looplift.debug.report.build import ReportData, build
from looplift.debug.report.numeric import Runs
from looplift.debug.report.page import write
from looplift.request import Request

from . import report_models
from .browser import Page, opened

ENTER, ESCAPE, DOWN = "\ue007", "\ue00c", "\ue015"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def written(model: onnx.ModelProto, path: Path, runs: Runs = Runs.NONE) -> ReportData:
    report = build(Request.of(model), "a model", runs=runs)
    write(report, path)
    return report


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReportData]:
    path = tmp_path_factory.mktemp("demo") / "demo.html"
    return path, written(report_models.model(), path, Runs.ALL)


@pytest.fixture
def report(demo: tuple[Path, ReportData]) -> ReportData:
    return demo[1]


@pytest.fixture
def page(session: Any, demo: tuple[Path, ReportData]) -> Iterator[Page]:
    page = Page(session, demo[0])
    page.wait(lambda: page.all("#before .node"))
    yield page
    assert page.errors() == []


def chosen(page: Page) -> str:
    return page.text("[role=option][aria-selected=true] .number")


def drawn(page: Page, pane: str) -> dict[int, str]:
    """The nodes drawn in a pane, by number, with the classes that colour them."""
    script = (
        "return [...document.querySelectorAll(`#${pane} .node`)]"
        ".map((node) => [Number(node.dataset.number), node.getAttribute('class')])"
    )
    return {int(n): str(c) for n, c in page.run(script.replace("${pane}", pane))}


def go_to(page: Page, number: int) -> None:
    page.run(f"window.location.hash = 'commits={number}'")
    page.wait(lambda: f"commit {number} of" in page.text("#commit-head"))
    settle(page)


def settle(page: Page) -> None:
    """Waits for the drawing that comes with the next frame."""
    page.session.execute_async_script(
        "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    )


# --- the whole ---


def test_it_opens_with_the_model_before_and_after(page: Page, report: ReportData) -> None:
    assert page.session.title == "a model · looplift report"
    head = page.text("#commit-head")
    assert "Overview" in head
    assert "Loop of `last` remains" in head
    assert "bookkeeping: " in head
    first = page.all("#commit-head .stories a")[0]
    assert first.get_attribute("href").partition("#")[2].startswith("commits=")
    bars = page.all("#commit-head .bar")
    assert [bar.get_attribute("aria-label").split()[0] for bar in bars] == ["before:", "after:"]
    assert "Below is the model before and after" in head
    assert "equal to the original" in page.text("#commit-head .check.equal")
    operators = [element.get_attribute("data-op") for element in page.all("#before .node")]
    assert {"If", "Loop"} <= set(operators)
    assert len(page.all("#commit-list [role=option]")) == len(report.commits) + 1


def test_it_loads_nothing(page: Page) -> None:
    assert page.run("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_names_are_no_markup(session: Any, tmp_path: Path) -> None:
    written(report_models.hostile(), tmp_path / "hostile.html")
    page = Page(session, tmp_path / "hostile.html")
    page.wait(lambda: page.all("#before .node"))
    names = page.run(
        "return [...document.querySelectorAll('#before text')].map((t) => t.textContent)"
    )
    assert any(name.startswith("</script><img") for name in names)
    page.press("2")
    page.wait(lambda: page.shown("#why-details h2"))
    assert report_models.HOSTILE in page.text("#why-details article:not([hidden]) h2")
    assert page.run("return [window.hacked, document.images.length]") == [None, 0]
    assert page.errors() == []


# --- commits ---


def test_each_commit_shows_what_it_changes(page: Page, report: ReportData) -> None:
    for number, commit in enumerate(report.commits, 1):
        go_to(page, number)
        assert commit["rule"] in page.text("#commit-head h2")
        assert page.all("#commit-head .check.equal")
        before, after = drawn(page, "before"), drawn(page, "after")
        for gone in set(commit["removed"]) & set(before):
            assert "removed" in before[gone]
        assert "root" in before[commit["root"]]
        assert set(commit["added"]) <= set(after), "the nodes that a commit adds are drawn"
        assert all("added" in after[made] for made in commit["added"])
        marks = {line[0] for line in commit["lines"]}
        shown = {line.text.strip() for line in page.all("#change .sign")}
        assert shown == {mark.replace("-", "\N{MINUS SIGN}").strip() for mark in marks}
        assert "match" in page.text("#rule .code")


def test_a_body_folds_and_unfolds(page: Page) -> None:
    loop = page.session.find_element("css selector", "#before .node[data-op=Loop]")
    inside = f"#before .node[data-number='{loop.get_attribute('data-number')}'] .node"
    fold = f"#before .node[data-number='{loop.get_attribute('data-number')}'] > .fold"
    unfolded = len(page.all(inside))
    press_on(page, fold)
    page.wait(lambda: len(page.all(inside)) != unfolded, "the fold")
    toggled = len(page.all(inside))
    assert {unfolded, toggled} >= {0}
    assert max(unfolded, toggled) >= 5
    state = page.session.find_element("css selector", fold).get_attribute("aria-expanded")
    assert state == ("true" if toggled else "false")
    page.press(ENTER)  # the focus is still there
    page.wait(lambda: len(page.all(inside)) == unfolded, "the second fold")


def press_on(page: Page, selector: str) -> None:
    """Does what a reader without a mouse does: Tab to it, then Enter."""
    page.run(f'document.querySelector("{selector}").focus()')
    page.press(ENTER)


def test_both_branches_of_an_if_are_drawn(page: Page) -> None:
    texts = page.all("#before .node[data-op=If] > .body > text")
    titles = [text.get_attribute("textContent") for text in texts]
    assert [title.split(":")[0] for title in titles] == ["then_branch", "else_branch"]


def test_a_node_shows_its_values_and_commits(page: Page, report: ReportData) -> None:
    number = next(n for n, c in enumerate(report.commits, 1) if "Constant" in c["node"])
    go_to(page, number)
    page.click("#before .node.root")
    page.wait(lambda: page.shown("#node-card"))
    assert "Constant" in page.text("#node-card h3")
    assert str(number) in [link.text for link in page.all("#node-card .link")]
    page.press(ESCAPE)
    page.wait(lambda: not page.shown("#node-card"))


def test_more_is_drawn_around(session: Any, tmp_path: Path) -> None:
    written(report_models.chain(60), tmp_path / "chain.html")
    page = Page(session, tmp_path / "chain.html", "#commits=5")
    page.wait(lambda: page.all("#before .node"))
    settle(page)
    near = len(drawn(page, "before"))
    page.press("]")
    settle(page)
    page.wait(lambda: len(drawn(page, "before")) > near, "a wider region")
    page.press("[")
    settle(page)
    page.wait(lambda: len(drawn(page, "before")) == near, "the narrow region")
    page.run("document.querySelector('#before .more').dispatchEvent(new Event('click'))")
    settle(page)
    page.wait(lambda: len(drawn(page, "before")) > near, "hidden neighbours")


def test_of_a_large_model_only_a_part_is_drawn(session: Any, tmp_path: Path) -> None:
    report = written(report_models.chain(2000), tmp_path / "large.html")
    page = Page(session, tmp_path / "large.html")
    page.wait(lambda: page.all("#before .node"))
    assert len(report.commits) >= 500
    for number in (1, 250, 500):
        go_to(page, number)
        assert 1 <= len(drawn(page, "before")) <= 120
        before = page.text("#panel-commits figure .count")
        assert re.fullmatch(r"\d{1,3} of \d{4} nodes", before), before


# --- finding one's way ---


def test_keys_go_through_the_commits(page: Page, report: ReportData) -> None:
    places = []
    for key in ("j", "j", DOWN, "k", "G", "g"):
        page.press(key)
        places.append(int(chosen(page)))
    assert places == [1, 2, 3, 2, len(report.commits), 0]
    assert page.run("return location.hash") == "#commits=0"


def test_the_address_leads_back(session: Any, demo: tuple[Path, ReportData]) -> None:
    page = Page(session, demo[0], "#commits=2")
    page.wait(lambda: "commit 2 of" in page.text("#commit-head"))
    page = Page(session, demo[0], "#why=1")
    page.wait(lambda: page.shown("#why-details h2"))
    assert "Loop" in page.text("#why-details article:not([hidden]) h2")


def test_search_narrows_the_list(page: Page, report: ReportData) -> None:
    word = report.commits[-1]["rule"]
    page.press("/")
    page.press(word.lower())
    fitting = [n for n, c in enumerate(report.commits, 1) if word.lower() in str(c).lower()]
    page.wait(lambda: len(page.shown("#commit-list [role=option]")) <= len(fitting))
    assert page.text("#search-count").endswith("found")
    page.press(ENTER)
    page.wait(lambda: word in page.text("#commit-head"))
    page.press("/", ESCAPE)
    page.wait(lambda: len(page.shown("#commit-list [role=option]")) > len(fitting))


def test_search_finds_nodes_and_draws_them(page: Page) -> None:
    page.press("/")
    page.press("neg")
    page.wait(lambda: page.shown("#found button"), "a node that is found")
    page.click("#found button")
    page.wait(lambda: page.all("#before .node[data-op=Neg].found"), "the node in the graph")


def test_a_search_without_a_hit(page: Page) -> None:
    page.press("/")
    page.press("no such thing", ENTER)
    assert page.text("#search-count") == "0 found"
    assert chosen_or_none(page) == []


def chosen_or_none(page: Page) -> list[Any]:
    return page.shown("[role=option][aria-selected=true]")


def test_help_lists_the_keys(page: Page) -> None:
    page.press("?")
    page.wait(lambda: page.shown("#help"))
    assert "next, previous" in page.text("#help")
    page.press(ESCAPE)
    page.wait(lambda: not page.shown("#help"))


def test_light_and_dark(page: Page) -> None:
    def background() -> str:
        return str(page.run("return getComputedStyle(document.body).backgroundColor"))

    first = background()
    page.click("#theme")
    assert background() != first


# --- the other tabs ---


def test_why_not(page: Page, report: ReportData) -> None:
    page.click("#tab-why")
    page.wait(lambda: page.shown("#why-details h2"))
    article = "#why-details article:not([hidden])"
    for number, left in enumerate(report.remaining):
        page.click(f"#remaining-{number}")
        settle(page)
        assert left["node"] in page.text(f"{article} h2")
        reasons = [reason.text for reason in page.all(f"{article} .reason")]
        assert reasons == [" ".join(why["reason"].split()) for why in left["why"]]
        assert f"{left['number']}" in map(str, drawn(page, "remaining"))
    page.press("k")
    assert chosen_in(page, "#why-list") == "1"


def chosen_in(page: Page, listing: str) -> str:
    return page.text(f"{listing} [aria-selected=true] .number")


def test_the_source_of_a_rule_that_did_not_fire(page: Page) -> None:
    page.press("2")
    page.wait(lambda: page.shown("#why-details summary"))
    page.run(
        "document.querySelector('#why-details article:not([hidden]) [data-source] summary').click()"
    )
    page.wait(lambda: page.shown("#why-details .source .code"), "the source")


def test_rules_by_attempts_hits_and_time(page: Page, report: ReportData) -> None:
    page.press("3")
    page.wait(lambda: page.shown("#rules"))
    tried = [rule for rule in report.rules if rule.attempts]
    rows = "#rules > tbody > tr > td:first-child summary"
    assert page.values(rows, "innerText") == [rule.name for rule in tried]
    page.run("document.querySelectorAll('#rules th button')[3].click()")
    hits = [
        int(value)
        for value in page.values("#rules > tbody > tr > td:nth-child(4)", "dataset.value")
    ]
    assert hits == sorted((rule.hits for rule in tried), reverse=True)
    page.press("/")
    page.press("constant")
    page.wait(lambda: len(page.shown("#rules > tbody")) < len(tried))
    texts = [str(row.get_attribute("data-text")).lower() for row in page.shown("#rules > tbody")]
    assert all("constant" in text for text in texts)
    assert texts


# --- bookkeeping ---


def many_constants(count: int) -> onnx.ModelProto:
    constants = " ".join(f"c{n} = Constant <value_float = {n}.5> ()" for n in range(count))
    sums = " ".join(f"s{n + 1} = Add(s{n}, c{n})" for n in range(count))
    return report_models.model(
        f"g (float[2] s0) => (float[2] y) {{ {constants} {sums} y = Neg(s{count}) }}"
    )


def test_many_bookkeeping_commits_are_hidden_until_asked_for(session: Any, tmp_path: Path) -> None:
    report = written(many_constants(30), tmp_path / "many.html")
    page = Page(session, tmp_path / "many.html")
    page.wait(lambda: page.all("#before .node"))
    assert len(page.shown("#commit-list [role=option]")) == 1
    assert page.text("#bookkeeping") == f"show {len(report.commits)} bookkeeping commits"
    page.click("#bookkeeping input")
    assert len(page.shown("#commit-list [role=option]")) == len(report.commits) + 1
    page.click("#bookkeeping input")
    page.run("window.location.hash = 'commits=5'")
    page.wait(lambda: "commit 5 of" in page.text("#commit-head"))
    assert [each.get_attribute("id") for each in page.shown("#commit-list [role=option]")] == [
        "commit-0",
        "commit-5",
    ]
    page.run("document.getElementById('search').value = 'ConstantToInitializer'")
    page.run("search('ConstantToInitializer')")
    assert len(page.shown("#commit-list [role=option]")) == len(report.commits)


def test_few_bookkeeping_commits_are_listed(page: Page, report: ReportData) -> None:
    assert page.all("#bookkeeping") == []
    assert len(page.shown("#commit-list [role=option]")) == len(report.commits) + 1
