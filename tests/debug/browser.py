"""A real Chromium without a window, for tests of pages; tests that need it are skipped without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECONDS = 20.0
"""A page may take so long to come to what a test waits for."""


def programs() -> tuple[str, str]:
    """Browser and driver; skips the test, saying what to install, where one is missing."""
    names = [os.environ.get("LOOPLIFT_BROWSER", ""), "chromium", "chromium-browser"]
    browser = next((path for name in names if name and (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with chromedriver (Debian: apt-get install chromium-driver)")
    return browser, driver


@contextmanager
def opened(profile: Path) -> Iterator[Any]:
    """A browser with an empty profile."""
    browser, driver = programs()
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "window-size=1400,900", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield session
    finally:
        session.quit()


class Page:
    """A page as a reader has it: what is shown, and keys and clicks."""

    def __init__(self, session: Any, path: Path, place: str = "") -> None:
        self.session = session
        session.get("about:blank")
        session.get(f"{path.as_uri()}{place}")

    def all(self, selector: str) -> list[Any]:
        return list(self.session.find_elements("css selector", selector))

    def shown(self, selector: str) -> list[Any]:
        return [each for each in self.all(selector) if each.is_displayed()]

    def values(self, selector: str, name: str) -> list[str]:
        """A property of all elements; one request, where `all` makes one for each element."""
        script = f"return [...document.querySelectorAll(arguments[0])].map(each => each.{name})"
        return list(self.session.execute_script(script, selector))

    def text(self, selector: str) -> str:
        return str(self.session.find_element("css selector", selector).text)

    def click(self, selector: str) -> None:
        self.session.find_element("css selector", selector).click()

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.session).send_keys(*keys).perform()

    def run(self, script: str) -> Any:
        return self.session.execute_script(script)

    def wait(self, true: Callable[[], object], what: str = "the page") -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.session, SECONDS, 0.02).until(lambda _: true(), f"{what} does not come")

    def errors(self) -> list[str]:
        """What the browser complained of since the last call."""
        log = self.session.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]
