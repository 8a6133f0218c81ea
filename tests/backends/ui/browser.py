"""A real browser: Debian's Chromium, driven by Playwright. ``python -m tests.backends.parts up ui`` installs it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from tests.backends.docker.engine import install

PROGRAM = "chromium"


def up() -> None:
    """Chromium is on PATH."""
    install(PROGRAM, PROGRAM)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    from playwright.sync_api import sync_playwright

    # Chromium refuses its sandbox to root, as tests run in containers.
    args = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which(PROGRAM), args=args)
        try:
            yield started
        finally:
            started.close()
