"""Chromium, for tests of pages: `make docs-check`."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest

WIDTHS = {"desktop": 1280, "phone": 390}


@contextmanager
def chromium():
    """Its browser; the test is skipped where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("There is no Chromium: apt-get install chromium.")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        yield started.chromium.launch(executable_path=path, args=options)
