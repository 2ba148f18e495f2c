"""Real Chromium in front of a real server, with a store that has something of everything."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)
from tests.fixtures.waiting import WAIT
from tests.http.conftest import Server, serve
from tests.page.sample import Sample, make_sample

__all__ = ["PATIENCE", "PHONE", "Look", "phone", "serve"]

NAMES = ("chromium", "google-chrome", "chromium-browser")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 1000 * WAIT
"""Milliseconds: only a page that never gets there waits so long."""
PHONE = (390, 844)

Look = Callable[..., Path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: while it is there, nothing else in this process may have an event loop."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "no Chromium: scripts/test installs one"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Shared by all tests, like its server: what changes something begins a session of its own."""
    return make_sample(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def server(sample: Sample) -> Iterator[Server]:
    """Without tokens, on loopback."""
    started = Server(sample.store.parent, "--no-auth")
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """Paths are addresses of the server."""
    made = browser.new_context(base_url=server.url, viewport={"width": 1280, "height": 800})
    made.set_default_timeout(PATIENCE)
    made.set_default_navigation_timeout(PATIENCE)
    yield made
    made.close()


@pytest.fixture
def troubles() -> list[str]:
    """What the browser complained of so far: to be cleared by who expects it."""
    return []


@pytest.fixture
def page(context: BrowserContext, troubles: list[str]) -> Iterator[Page]:
    """A page that must not complain: of scripts, of files that are not there, of what the content
    security policy forbids."""
    made = context.new_page()

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(message.text)

    made.on("console", said)
    made.on("pageerror", lambda error: troubles.append(str(error)))
    yield made
    assert not troubles


@pytest.fixture
def look(request: pytest.FixtureRequest, tmp_path: Path) -> Look:
    """Keeps a picture of a page, in $ORTET_SCREENSHOTS if that is set."""
    place = Path(os.environ.get("ORTET_SCREENSHOTS") or tmp_path)
    place.mkdir(parents=True, exist_ok=True)

    def keep(page: Page, name: str = "") -> Path:
        plain = re.sub(r"[^a-z0-9-]+", "-", f"{request.node.name}-{name}".lower()).strip("-")
        path = place / f"{plain}.png"
        page.screenshot(path=path)
        return path

    return keep


def phone(page: Page) -> Page:
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    return page
