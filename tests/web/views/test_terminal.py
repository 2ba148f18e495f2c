"""The terminal page on a real machine, with xterm.js and without."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import Look, phone
from tests.fixtures.http_server import Server

live = pytest.mark.criu


@live
def test_plain_terminal_page_sends_lines_and_shows_output(
    page: Page, server: Server, look: Look
) -> None:
    path = server.client().new("typed-plain")
    page.goto("/s/typed-plain/terminal?plain=1")
    expect(
        page.get_by_role("heading", name="No machine of this session lives here")
    ).to_be_visible()
    look(page, "empty")
    page.get_by_role("button", name="Open a terminal").click()
    expect(page.locator("#state")).to_have_text("connected")
    field = page.get_by_label("What to type into the shell")
    expect(field).to_be_focused()
    field.fill("printf '\\033[31m%s-%s\\033[0m\\n' $((6*7)) '<img src=x>'")
    field.press("Enter")
    screen = page.locator("#screen")
    expect(screen).to_contain_text("42-<img src=x>")
    expect(screen.locator("img")).to_have_count(0)
    # told by who has the terminal: an interrupt before that would be the shell's
    field.fill("sh -c 'echo begun-$((1+1)); exec sleep 1000'")
    field.press("Enter")
    expect(screen).to_contain_text("begun-2")
    field.press("Control+c")
    field.fill("echo code-$?")
    field.press("Enter")
    expect(screen).to_contain_text("code-130")
    field.press("ArrowUp")
    expect(field).to_have_value("echo code-$?")
    look(page)
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    field.fill("exit 3")
    field.press("Enter")
    expect(page.locator("#state")).to_have_text("the shell ended with code 3")
    page.goto(path.replace("/sessions", "/s") + "/journal?kind=done")
    expect(page.locator(".event", has_text="a terminal was opened").first).to_be_visible()


@live
def test_xterm_sends_keys_to_the_machine(page: Page, server: Server, look: Look) -> None:
    server.client().new("typed-full")
    page.goto("/s/typed-full/terminal")
    assert page.evaluate("typeof window.Terminal") == "function", "scripts/xterm puts it there"
    page.get_by_role("button", name="Open a terminal").click()
    expect(page.locator("#state")).to_have_text("connected")
    page.keyboard.type("echo $((6*7))-typed\n")
    expect(page.locator(".xterm-rows")).to_contain_text("42-typed")
    look(page, "light")
    page.get_by_role("button", name="Switch between light and dark").click()
    look(page, "dark")
    page.reload()  # its machine lives: the shell is there again, and what it showed
    expect(page.locator(".xterm-rows")).to_contain_text("42-typed")


def test_a_session_in_place_says_why_it_has_none(
    page: Page, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("place")
    server.client().new("in-place", workspace=str(place), engine="folder")
    page.goto("/s/in-place/terminal")
    expect(page.get_by_role("heading", name="No terminal here")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("needs a machine")
