"""What every page has: login, theme, keyboard help, cached static files."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.fixtures.browser import PATIENCE, Look, phone
from tests.fixtures.http_server import Serve, Server
from tests.web.sample import Sample

HTML = {"Accept": "text/html,application/xhtml+xml"}


def test_without_a_token_a_page_asks_for_one(browser: Browser, serve: Serve, look: Look) -> None:
    server = serve()
    token = server.token("me", "--allow", "read")
    context = browser.new_context(base_url=server.url)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    answer = page.goto("/?status=paused")
    assert answer is not None
    assert answer.status == 401
    look(page, "asked")
    page.get_by_label("Token").fill("ortet_000000000000_" + "0" * 64)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    cookie = next(one for one in context.cookies() if one.get("name") == "ortet")
    assert cookie.get("httpOnly")
    assert cookie.get("sameSite") == "Strict"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    context.close()


@pytest.mark.parametrize("to", ["//elsewhere.example/", "/\\elsewhere.example", "http://x.example"])
def test_login_redirects_only_to_paths_of_this_site(serve: Serve, to: str) -> None:
    server = serve()
    token = server.token("me", "--allow", "read")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    client = server.client()
    reply = client.ask("POST", "/login", f"token={token}&next={to}".encode(), headers=form)
    assert (reply.status, reply.headers["location"]) == (303, "/")
    reply = client.ask("POST", "/login", f"token={token}&next=/s/x".encode(), headers=form)
    assert (reply.status, reply.headers["location"]) == (303, "/s/x")
    wrong = client.ask("POST", "/login", b"token=no&next=/s/x", headers=form)
    asked = client.ask("GET", wrong.headers["location"], headers=HTML)
    assert b'name="next" value="/s/x"' in asked.body  # a slip does not lead elsewhere
    asked = client.ask("GET", f"/login?next={quote(to)}", headers=HTML)
    assert b'name="next" value="/"' in asked.body


def test_the_theme_follows_the_system_and_then_the_switch(
    page: Page, sample: Sample, look: Look
) -> None:
    def paper() -> str:
        found: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return found

    page.emulate_media(color_scheme="light")
    page.goto(f"/s/{sample.session}")
    light = paper()
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert light != dark
    look(page, "dark")
    page.keyboard.press("t")
    assert paper() == light
    page.reload()
    assert paper() == light
    page.get_by_role("button", name="Switch between light and dark").click()
    assert paper() == dark
    look(phone(page), "phone")


def test_question_mark_opens_the_keyboard_help(page: Page, sample: Sample, look: Look) -> None:
    page.goto(f"/s/{sample.session}")
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog")
    expect(help_).to_contain_text("Light or dark")
    look(page)
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()


def test_a_page_fits_a_phone(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}")
    phone(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_current_tab_is_visible_on_a_phone(page: Page, sample: Sample) -> None:
    phone(page).goto(f"/s/{sample.session}/terminal")
    tab = page.get_by_role("navigation", name="Session").get_by_role("link", name="Terminal")
    expect(tab).to_be_in_viewport(ratio=0.9)


def test_site_navigation_links_to_the_api_page(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}")
    page.get_by_role("navigation", name="Site").get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The HTTP interface")


def test_unknown_session_page_is_404_with_an_explanation(
    page: Page, troubles: list[str], look: Look
) -> None:
    answer = page.goto("/s/" + "0" * 32)
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("main")).to_contain_text("Not here")
    look(page)
    troubles.clear()  # the browser says so, too


def test_static_files_are_cached_forever_under_their_version(
    server: Server, sample: Sample
) -> None:
    client = server.client()
    home = client.ask("GET", f"/s/{sample.session}", headers=HTML)
    assert "script-src 'self'" in home.headers["content-security-policy"]
    at = re.search(rb"/static/[0-9a-f]+/style.css", home.body)
    assert at is not None
    path = at[0].decode()
    found = client.ask("GET", path)
    assert found.status == 200
    assert found.headers["content-type"].startswith("text/css")
    assert "immutable" in found.headers["cache-control"]
    again = client.ask("GET", path, headers={"If-None-Match": found.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    old = client.ask("GET", "/static/0123456789ab/style.css")
    assert old.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["../site.py", "..%2fsite.py", "%2e%2e/site.py", "/etc/passwd", "//etc/passwd", "x"]
)
def test_static_path_outside_the_static_directory_is_404(server: Server, name: str) -> None:
    reply = server.client().ask("GET", f"/static/0/{name}")
    assert reply.status == 404
    assert reply.kind == "no_route"
