"""Hostile text on every page: HTML, scripts, template syntax, bidirectional marks, long words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page
from tests.fixtures.browser import PATIENCE, PHONE, Look
from tests.fixtures.http_server import Server

import ortet

RUN = "window.ran=(window.ran||0)+1"
EVIL = (
    f'"\'><img src=x onerror="{RUN}"><script>{RUN}</script></script></textarea></title>'
    f"<svg onload={RUN}><a href=javascript:{RUN}>j</a>{{{{7*7}}}}${{7*7}}{{%raw%}}"
    f"[x](javascript:{RUN})\u202egnp.exe\u2066 " + "w" * 400
)
"""No line ends in it: some of what is shown is one line."""
FLAT = EVIL.replace("/", "-")
"""Where a slash would be another address."""
NAME = f"<img/src=x/onerror={RUN.replace('||', '-')}>" + "n" * 60
"""Where spaces are not allowed."""


class Evil(NamedTuple):
    server: Server
    session: str
    old: str
    new: str


def fails(text: str) -> None:
    raise ValueError(text)


def make(place: Path) -> tuple[str, str, str]:
    """A session that is nothing but that."""
    work = place / "work"
    work.mkdir(parents=True)
    with ortet.open(place / "store") as hub:
        with hub.session("evil", goal=EVIL, workspace=work, budget={"usd": 1.0}) as s:
            s.say("user", EVIL)
            s.say(EVIL[:90], [{"type": "text", "text": EVIL}, {"type": EVIL, "x": EVIL}])
            s.plan([EVIL, EVIL + "2"])
            s.think(EVIL)
            s.note(EVIL, EVIL)
            s.ask(EVIL)
            s.learn(EVIL, about=EVIL)
            old = s.learn(EVIL + " old", about=EVIL, scope="project:" + NAME)
            s.lesson(EVIL)
            s.decide(EVIL, why=EVIL, instead_of=[EVIL])
            with pytest.raises(ValueError, match="img"):
                s.act(fails, EVIL, why=EVIL)
            s.run(f"printf '%s' {'x' * 10}; exit 3", why=EVIL)
            s.spend(usd=0.1, tokens=3, model=EVIL)
            s.record("evil.kind", {EVIL: EVIL})
            s.external.collaborate(
                EVIL[:100], kind="pull request", link=f"javascript:{RUN}", text=EVIL
            )
            (work / NAME.replace("/", "-")[:200]).write_text(EVIL + "\nold\n")
            (work / "code.py").write_text(f"x = '''{EVIL}'''\n")
            s.artifact("plain" + EVIL[:200], data=EVIL, kind=EVIL, why=EVIL)
            s.artifact(NAME + ".html", data=f"<html>{EVIL}</html>")
            s.artifact(NAME + ".csv", data=f"{EVIL.replace(',', '')},b\n1,2\n")
            s.artifact(NAME + ".svg", data=f"<svg xmlns='http://www.w3.org/2000/svg'>{EVIL}</svg>")
            first = s.commit(EVIL + "\n\n" + EVIL)
            s.learn(EVIL + " new", about=EVIL, supersedes=old)
            s.say("assistant", EVIL + "3")
            (work / NAME.replace("/", "-")[:200]).write_text(EVIL + "\nnew\n")
            (work / "code.py").write_text(f"y = '''{EVIL}'''\n")
            second = s.commit("second " + EVIL)
            hub.refs.create("tag" + NAME, hub.refs.resolve(second.oid), kind="tag")
            hub.refs.create("branch" + NAME, hub.refs.resolve(second.oid))
            s.compact(keep_last=1, summarise=lambda _: EVIL)
            s.fork(1, machine=False)
            found = s.id
        hub.comment(found, EVIL, by=EVIL)
        return found, first.oid, second.oid


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evil]:
    place = tmp_path_factory.mktemp("evil")
    session, old, new = make(place)
    started = Server(place, "--no-auth", env={"ORTET_AUTHOR": EVIL[:100]})
    try:
        yield Evil(started, session, old, new)
    finally:
        started.kill()


PAGES = (
    "/",
    f"/?q={quote(EVIL)}",
    f"/?agent={quote(EVIL)}&status={quote(EVIL)}",
    "/memory",
    f"/memory?q={quote('img gnp.exe ' + EVIL)}",
    f"/memory?q=img&at={quote(EVIL[:60])}",
    "/storage",
    "/s/evil",
    "/s/evil/journal",
    f"/s/evil/journal?q={quote('img src')}",
    f"/s/evil/journal?kind={quote(EVIL)}",
    "/s/evil/memory",
    "/s/evil/memory?past=1",
    "/s/evil/memory?show=episodes",
    "/s/evil/memory?q=img",
    "/s/evil/artifacts",
    f"/s/evil/artifacts?name={quote('plain' + EVIL[:200])}",
    f"/s/evil/artifacts?name={quote(NAME + '.html')}",
    f"/s/evil/artifacts?name={quote(NAME + '.csv')}",
    f"/s/evil/artifacts?name={quote(NAME + '.svg')}",
    "/s/evil/budget",
    "/s/evil/terminal",
    "/s/evil/c/{new}",
    "/s/evil/compare/{old}/{new}",
    "/s/evil/replay",
    "/s/evil/replay?at=12",
)
REFUSED = (
    (f"/s/{quote(FLAT, safe='')}", 404),
    (f"/s/{quote(FLAT, safe='')}/journal", 404),
    (f"/s/evil/journal?before={quote(EVIL)}", 422),
    (f"/s/evil/journal?{quote(EVIL)}=1", 422),
    (f"/s/evil/artifacts?name={quote(EVIL)}", 404),
    (f"/s/evil/c/{quote(FLAT, safe='')}", 404),
)


@pytest.fixture
def watched(browser: Browser, evil: Evil) -> Iterator[tuple[Page, list[str]]]:
    context = browser.new_context(
        base_url=evil.server.url, viewport={"width": PHONE[0], "height": PHONE[1]}
    )
    context.set_default_timeout(PATIENCE)
    page, troubles = context.new_page(), list[str]()

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(message.text)

    def asked(dialog: object) -> None:
        troubles.append(f"a dialog: {dialog}")

    page.on("console", said)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", asked)
    yield page, troubles
    context.close()


def settled(page: Page) -> None:
    """What scripts draw is drawn, and what was smuggled in had its time."""
    page.wait_for_load_state("load")
    page.evaluate("() => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50))")


def check(page: Page) -> None:
    assert page.evaluate("window.ran") is None
    assert (
        page.evaluate("document.querySelectorAll('[src=x], a[href^=\"javascript:\" i]').length")
        == 0
    )
    assert page.evaluate("[...document.scripts].every((one) => one.src && !one.textContent)")
    text = page.evaluate("document.documentElement.textContent")
    assert "$49" not in text
    assert "\u202e" not in text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is too wide"


@pytest.mark.parametrize("path", PAGES)
def test_hostile_text_is_shown_and_not_executed_on_every_page(
    watched: tuple[Page, list[str]], evil: Evil, path: str, look: Look
) -> None:
    page, troubles = watched
    answer = page.goto(path.replace("{old}", evil.old).replace("{new}", evil.new))
    assert answer is not None
    assert answer.status == 200
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    settled(page)
    page.evaluate(
        "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
    )
    settled(page)
    look(page)
    check(page)
    assert not troubles


@pytest.mark.parametrize(("path", "status"), REFUSED)
def test_error_pages_show_hostile_text_and_do_not_execute_it(
    watched: tuple[Page, list[str]], path: str, status: int
) -> None:
    page, troubles = watched
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == status
    settled(page)
    check(page)
    assert all("status of" in one for one in troubles), troubles


def test_journal_page_shows_every_part_of_hostile_text(watched: tuple[Page, list[str]]) -> None:
    page, _ = watched
    page.goto("/s/evil/journal")
    shown = page.locator("#events").inner_text()
    for part in ("<img src=x onerror", "</script>", "{{7*7}}", "javascript:", "\\u202e"):
        assert part in shown


def test_html_and_svg_artifacts_are_served_sandboxed(watched: tuple[Page, list[str]]) -> None:
    """Opened as a page of its own it has no origin and no scripts."""
    page, _ = watched
    for end in (".html", ".svg"):
        answer = page.goto(f"/sessions/evil/artifacts/{quote(NAME + end, safe='')}")
        assert answer is not None
        assert answer.status == 200
        assert answer.headers["content-security-policy"].startswith("sandbox;")
        page.wait_for_load_state("load")
        assert page.evaluate("window.ran") is None
        assert page.evaluate("window.origin") == "null"


def test_reports_and_streams_show_hostile_text_unexecuted(
    watched: tuple[Page, list[str]], evil: Evil
) -> None:
    page, troubles = watched
    page.goto("/s/evil/journal")
    page.get_by_role("button", name="Restore").click()
    page.locator("#act").get_by_label("Commit").fill(evil.old[:16])
    page.locator(".act-report", has_text="modified: ").wait_for()
    settled(page)
    check(page)
    page.keyboard.press("Escape")
    page.locator("#events[data-following]").wait_for()
    evil.server.client().post("/sessions/evil/thoughts", {"text": "later " + EVIL})
    page.locator(".event", has_text="later ").first.wait_for()
    settled(page)
    check(page)
    assert not troubles
