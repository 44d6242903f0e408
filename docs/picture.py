"""Draws docs/report.png, the picture in the README, from the saved report of a VGG-16.

Run it as ``.venv/bin/python docs/picture.py`` after the report's looks have changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

REPOSITORY = Path(__file__).parent.parent
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


def main() -> None:
    """Render the page, open it in Chromium, and save what is seen."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        saved = REPOSITORY / "samples" / "vgg16.json"
        command = [sys.executable, "-m", "memcensus", "show", str(saved), "-o", str(page_file)]
        subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(QUIET)
        )
        page = browser.new_page(viewport={"width": 1200, "height": 1060})
        page.goto(page_file.as_uri())
        page.screenshot(path=REPOSITORY / "docs" / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
