"""The journal page: filtered, followed as events are written, commented."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from tests.fixtures.browser import Look, phone
from tests.fixtures.http_server import Server
from tests.web.sample import Sample


def test_journal_page_shows_events_with_their_reasons(
    page: Page, sample: Sample, look: Look
) -> None:
    page.goto(f"/s/{sample.session}/journal")
    decided = page.locator(".event", has_text="patch the lexer").filter(has_text="because")
    expect(decided).to_contain_text("smallest change")
    expect(decided).to_contain_text("instead of rewrite the parser")
    decided.get_by_text("data", exact=True).click()
    expect(decided.locator("pre")).to_contain_text('"instead_of"')
    expect(decided.locator("dd.mono").first).to_have_text(re.compile("^[0-9a-f]{64}$"))
    expect(page.locator(".event.money", has_text="1,200 tokens").first).to_be_visible()
    expect(page.locator(".event.reasoning", has_text="2. fix").first).to_be_visible()
    decided.scroll_into_view_if_needed()
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_journal_page_filters_by_kind_and_words(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}/journal")
    page.get_by_role("navigation", name="Kinds of events").get_by_role(
        "link", name="reasoning"
    ).click()
    expect(page.locator(".event.reasoning").first).to_be_visible()
    expect(page.locator(".event:not(.reasoning)")).to_have_count(0)
    search = page.get_by_role("searchbox", name="Search the journal")
    search.fill("LAST TOKEN")
    search.press("Enter")
    expect(page.locator(".event")).to_have_count(1)
    expect(page.locator(".event")).to_contain_text("the lexer drops the last token")
    search.fill("nothing says so")
    search.press("Enter")
    expect(page.get_by_role("heading", name="Nothing like that")).to_be_visible()


def test_journal_page_shows_new_events_at_once(page: Page, server: Server) -> None:
    client = server.client()
    path = client.new("followed")
    page.goto("/s/followed/journal")
    expect(page.locator("#events[data-following]")).to_be_visible()
    client.post(f"{path}/thoughts", {"text": "here is a new thought"})
    first = page.locator(".event").first
    expect(first).to_contain_text("here is a new thought")
    client.post(f"{path}/messages", {"role": "user", "content": "and then <b>this</b>"})
    expect(first).to_contain_text("and then <b>this</b>")
    expect(page.locator(".event", has_text="here is a new thought")).to_have_count(1)
    page.keyboard.press("f")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")


def test_journal_page_filters_new_events_too(page: Page, server: Server) -> None:
    client = server.client()
    path = client.new("chosen")
    page.goto("/s/chosen/journal?kind=said")
    expect(page.locator("#events[data-following]")).to_be_attached()
    client.post(f"{path}/thoughts", {"text": "not this"})
    client.post(f"{path}/messages", {"role": "user", "content": "but that"})
    expect(page.locator(".event")).to_contain_text(["but that"])
    expect(page.locator(".event", has_text="not this")).to_have_count(0)


def test_journal_page_removes_events_that_a_restore_left(page: Page, server: Server) -> None:
    client = server.client()
    path = client.new("restored")
    client.post(f"{path}/thoughts", {"text": "before"})
    head = client.post(f"{path}/commits", {"message": "a"})["oid"]
    client.post(f"{path}/thoughts", {"text": "a dead end"})
    client.post(f"{path}/commits", {"message": "b"})
    page.goto("/s/restored/journal")
    expect(page.locator(".event", has_text="a dead end")).to_be_visible()
    expect(page.locator("#events[data-following]")).to_be_visible()
    client.post(f"{path}/restore", {"ref": head})
    expect(page.locator(".event", has_text="a dead end")).to_have_count(0)
    expect(page.locator(".event", has_text="before").first).to_be_visible()


def test_older_events_are_behind_a_link_and_each_has_an_address(page: Page, server: Server) -> None:
    client = server.client()
    path = client.new("long")
    said = [{"role": "user", "content": f"number {n} of many"} for n in range(150)]
    client.post(f"{path}/messages/batch", {"messages": said})
    page.goto("/s/long/journal")
    expect(page.locator(".event")).to_have_count(60)
    page.get_by_role("link", name="Older events").click()
    page.get_by_role("link", name="Older events").click()
    expect(page.locator(".event", has_text="number 0 of many")).to_be_visible()
    expect(page.get_by_role("button", name="Following")).to_have_count(0)
    page.get_by_role("link", name="Back to the newest").click()
    expect(page.locator(".event", has_text="number 149 of many")).to_be_visible()
    seq = page.locator(".event", has_text="number 149 of many").get_attribute("data-seq")
    page.goto(f"/s/long/journal?before={int(seq or 0) - 99}#e{int(seq or 0) - 100}")
    expect(page.locator(".event:target")).to_contain_text("number 49 of many")


def test_a_comment_reaches_the_session(page: Page, server: Server) -> None:
    client = server.client()
    path = client.new("commented")
    page.goto("/s/commented/journal")
    field = page.get_by_label("Leave a comment")
    field.fill("please <i>stop</i> here")
    page.get_by_role("button", name="Comment").click()
    expect(page.locator(".event", has_text="please <i>stop</i> here")).to_be_visible()
    expect(field).to_have_value("")
    assert [one["data"]["text"] for one in client.get(f"{path}/comments")["items"]] == [
        "please <i>stop</i> here"
    ]


def test_an_empty_journal_says_what_to_do(page: Page, server: Server) -> None:
    server.client().new("nothing-yet")
    page.goto("/s/nothing-yet/journal?kind=known")
    expect(page.get_by_role("heading", name="Nothing like that")).to_be_visible()
