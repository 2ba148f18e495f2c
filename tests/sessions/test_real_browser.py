"""A real browser: logged in, saved with the session, restored in a new one, still logged in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.erasing import holds
from tests.fixtures.waiting import WAIT

from ortet.config.environment import open_hub

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

COOKIE = "cookie-do-not-show-4711"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 2000 * WAIT
"""Milliseconds: a host that runs other tests, too, is slow."""


class Site(BaseHTTPRequestHandler):
    """/login sets a cookie; every page says whether it came back."""

    def do_GET(self) -> None:
        known = f"sid={COOKIE}" in self.headers.get("Cookie", "")
        page = b"<p>welcome back</p>" if known else b"<p>who are you?</p>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        if self.path == "/login":
            self.send_header("Set-Cookie", f"sid={COOKIE}; Max-Age=86400; HttpOnly")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program is not None, "no Chromium is installed: scripts/test-tools installs it"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield opened
        opened.close()


def new_context(browser: Browser, **given: Any) -> BrowserContext:
    context = browser.new_context(**given)
    context.set_default_timeout(PATIENCE)
    return context


def says(context: BrowserContext, url: str) -> str:
    page = context.new_page()
    page.goto(url)
    text = page.inner_text("p")
    page.close()
    return text


@pytest.mark.slow
def test_restored_browser_state_is_still_logged_in(
    site: str, browser: Browser, store: Path, tmp_path: Path
) -> None:
    env = {"HOME": str(tmp_path / "home")}
    with open_hub(store, environ=env) as hub, hub.session("s") as s:
        context = new_context(browser)
        page = context.new_page()
        page.goto(f"{site}/login")
        page.evaluate("localStorage.setItem('theme', 'dark')")
        assert says(context, site) == "welcome back"
        file = tmp_path / "state.json"
        context.storage_state(path=file)
        s.external.browser([page.url], file)
        logged_in = s.commit("logged in")
        context.close()
        fresh = new_context(browser)
        assert says(fresh, site) == "who are you?"
        s.external.browser([], dict(fresh.storage_state()))
        s.commit("logged out")
        fresh.close()
    with open_hub(store, environ=env) as hub, hub.session("s") as s:
        s.restore(logged_in.oid)
        saved = s.external.browser()
        storage: Any = saved.storage
        again = new_context(browser, storage_state=storage)
        assert saved.urls == [f"{site}/login"]
        assert says(again, site) == "welcome back"
        page = again.new_page()
        page.goto(site)
        assert page.evaluate("localStorage.getItem('theme')") == "dark"
        again.close()
    assert holds(store, COOKIE) == []
