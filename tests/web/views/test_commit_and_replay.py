"""The pages of a commit, of two commits, and of a replay, in the browser."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from tests.fixtures.browser import Look, phone
from tests.fixtures.http_server import Server
from tests.web.sample import Sample

HTML = {"Accept": "text/html"}


def test_commit_page_shows_message_and_changes(page: Page, sample: Sample, look: Look) -> None:
    page.goto(f"/s/{sample.session}/c/{sample.head}")
    expect(page.get_by_role("heading", name="verified")).to_be_visible()
    expect(page.get_by_text("The suite passes, with and without the cache.")).to_be_visible()
    look(page)
    page.get_by_role("link", name="Changes").click()
    page.wait_for_url("**/compare/**")
    expect(page.locator("#said")).to_contain_text("all green now")


def test_copy_button_copies_the_commit_id(page: Page, sample: Sample) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/s/{sample.session}/c/{sample.first}")
    page.get_by_role("button", name=f"Copy {sample.first[:12]}", exact=True).click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == sample.first


def test_compare_page_shows_file_changes_side_by_side_and_stacked_on_phones(
    page: Page, sample: Sample, look: Look
) -> None:
    page.goto(f"/s/{sample.session}/compare/{sample.first}/{sample.second}")
    lexer = page.locator("details.diff").filter(has_text="lexer.py")
    removed, added = lexer.locator(".removed .l"), lexer.locator(".added .l")
    expect(removed).to_contain_text(["def parse(text):", "return words[:-1]"])
    expect(added).to_contain_text(
        ["def parse(text: str) -> list[str]:", "# the last token counts, too", "return words"]
    )
    expect(lexer.locator(".added .c")).to_have_text("# the last token counts, too")
    assert lexer.locator(".k").first.inner_text() == "def"
    left, right = removed.first.bounding_box(), added.first.bounding_box()
    assert left and right
    assert left["x"] + left["width"] <= right["x"] + 1
    look(page, "light")
    known = page.locator("#known")
    expect(known).to_contain_text("tests need PYTHONPATH=src")
    expect(known).to_contain_text("patch the lexer")
    expect(page.locator("#said")).to_contain_text("it is **not** done")  # as text, not as Markdown
    expect(page.locator("#plan .now")).to_have_text(["reproduce", "fix"])
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    phone(page)
    left, right = removed.first.bounding_box(), added.first.bounding_box()
    assert left and right
    assert left["y"] < right["y"]
    assert abs(left["x"] - right["x"]) < 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    look(page, "phone")


def test_x_key_swaps_the_compared_commits(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}/compare/{sample.first}/{sample.second}")
    page.keyboard.press("x")
    page.wait_for_url(f"**/compare/{sample.second}/{sample.first}")
    expect(page.locator("#known")).to_contain_text("No more")
    expect(page.locator("#known s")).to_have_text("tests need PYTHONPATH=src")


def test_compare_page_serves_one_file_by_its_number(server: Server, sample: Sample) -> None:
    where = f"/s/{sample.session}/compare/{sample.first}/{sample.second}"
    client = server.client()
    assert b"list[str]" in client.ask("GET", where, headers=HTML, file=0).body
    for bad in ("9", "-1", "x"):
        assert client.ask("GET", where, headers=HTML, file=bad).status == 404


def test_a_session_is_replayed_step_by_step(page: Page, sample: Sample, look: Look) -> None:
    page.goto(f"/s/{sample.session}/replay?at=0")
    moment = page.locator("#moment")
    expect(moment).to_contain_text("nothing has happened yet")
    page.keyboard.press("End")
    expect(moment.locator(".talk")).to_contain_text("all green now")
    expect(moment).to_contain_text("1,200")
    last = page.locator("#at").get_attribute("max")
    expect(page.locator(".moment")).to_have_attribute("data-at", last or "")
    look(page, "last")
    page.keyboard.press("Home")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".moment")).to_have_attribute("data-at", "12")
    expect(moment).to_contain_text("tests need PYTHONPATH=src")
    expect(moment.locator(".talk")).not_to_contain_text("it is **not** done")
    expect(moment.locator(".plan .now")).to_have_text("fix")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".moment")).to_have_attribute("data-at", "11")
    assert page.url.endswith("?at=11")
    look(page, "middle")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_replay_plays_to_the_last_event(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}/replay?at=0")
    page.get_by_label("Pace").select_option("fast")
    page.get_by_role("button", name="Play").click()
    last = page.locator("#at").get_attribute("max")
    expect(page.locator(".moment")).to_have_attribute("data-at", last or "")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_replay_slider_moves_to_any_event(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}/replay")
    page.locator("#at").fill("3")
    expect(page.locator(".moment")).to_have_attribute("data-at", "3")


def test_replay_page_can_fork_or_restore_at_an_event(
    page: Page, server: Server, look: Look
) -> None:
    client = server.client()
    path = client.new("acted")
    for word in ("one", "two"):
        client.post(f"{path}/messages", {"role": "user", "content": word})
        client.post(f"{path}/commits", {"message": f"said {word}"})
    client.post(f"{path}/messages", {"role": "user", "content": "three"})
    page.goto("/s/acted/replay?at=2")
    crumbs = page.get_by_role("navigation", name="Breadcrumb")
    expect(crumbs.get_by_role("link")).to_have_text(["Sessions", "default/acted", "Replay"])
    expect(page.locator("#where")).to_contain_text("said one")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#where")).to_contain_text("1 event behind")
    dialog = page.locator("#act")
    page.get_by_role("button", name="Fork from here").click()
    expect(dialog).to_contain_text("From event 4")
    look(page, "fork")
    dialog.get_by_role("button", name="Fork").click()
    expect(dialog.get_by_role("link")).to_have_text(["acted/1"])
    (fork,) = client.get("/sessions", search="acted/1")["items"]
    said = client.get(f"/sessions/{fork['id']}/messages")["items"]
    assert [one["content"] for one in said] == ["one", "two", "three"]
    with page.expect_event("load"):  # what was done is shown by a page of its own
        dialog.get_by_role("button", name="Close").click()
    page.goto("/s/acted/replay?at=2")
    page.get_by_role("button", name="Restore to here").click()
    report = dialog.locator(".act-report")
    # the two messages, and a pause where the server left the session meanwhile
    expect(report).to_contain_text(re.compile("[2-9] events that it will not know of any more"))
    assert len(client.get(f"{path}/messages")["items"]) == 3  # it was told, and not done
    look(page, "restore")
    dialog.get_by_role("button", name="Restore").click()
    expect(report).to_contain_text("Done")
    assert [one["content"] for one in client.get(f"{path}/messages")["items"]] == ["one"]
