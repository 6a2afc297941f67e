"""Takes a picture of a report, such as the one in the README.

    looplift report detector.onnx -o detector.html
    python examples/report_picture.py detector.html docs/report.png [--width 1400] [--dark]

Needs Chromium with chromedriver, and selenium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

HEIGHT = 1000


def take(page: Path, picture: Path, width: int = 1400, *, dark: bool = False) -> None:
    """Writes the picture, once the page has drawn its graphs."""
    from selenium import webdriver

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for switch in ("headless", "no-sandbox", f"user-data-dir={profile}", "hide-scrollbars"):
            options.add_argument(f"--{switch}")
        options.add_argument(f"--window-size={width},{HEIGHT}")
        if dark:
            options.add_argument("--blink-settings=preferredColorScheme=0")
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        session = webdriver.Chrome(options=options, service=service)
        try:
            session.get(page.absolute().as_uri())
            session.execute_script("return document.body.offsetHeight")
            time.sleep(1.0)  # until transitions have ended
            session.save_screenshot(str(picture))
        finally:
            session.quit()


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    take(arguments.page, arguments.picture, arguments.width, dark=arguments.dark)


if __name__ == "__main__":
    main()
