"""The commit tree in the browser: drawn in part, used by keys, searched, kept up to date."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.fixtures.browser import PATIENCE, PHONE, Look, phone
from tests.fixtures.http_server import Server
from tests.web.sample import HOSTILE, Sample

import ortet

MANY = 400


@pytest.fixture(scope="module")
def many(server: Server) -> str:
    """A session with more commits than are ever drawn at once."""
    with ortet.open(server.store) as hub, hub.session("many") as session:
        for n in range(MANY):
            session.say("assistant", f"step {n}")
            session.commit(f"commit number {n}")
        return session.id


def ready(page: Page, count: int) -> None:
    page.wait_for_selector(f'#tree[data-ready="{count}"]', state="attached")


def test_tree_shows_branches_tags_attempts_and_restored_away_commits(
    page: Page, sample: Sample, look: Look
) -> None:
    page.goto(f"/s/{sample.session}")
    tree = page.get_by_role("listbox")
    expect(tree.get_by_role("option")).to_have_count(9)
    look(page, "light")
    for label in ("fix-lexer", "fix-lexer/1", "green", "tries #2: 2"):
        expect(tree.get_by_text(label, exact=True)).to_be_visible()
    away = tree.get_by_role("option").filter(has_text="a wrong turn")
    expect(away).to_have_class(re.compile("is-away"))
    expect(page.get_by_label("Details")).to_contain_text("Swarm tries")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_branch_keeps_a_lane_of_its_own(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}")
    ready(page, 9)
    at = page.locator(".row .lanes circle").evaluate_all(
        "all => all.map(one => [one.closest('.row').dataset.row, one.getAttribute('cx')])"
    )
    lanes = [x for _, x in sorted((int(row), float(x)) for row, x in at)]
    trunk = lanes[0]
    assert lanes.count(trunk) == 4  # verified, fork point, patched, reproduced: one straight line
    assert len(set(lanes)) == 5


def test_keys_choose_and_open_a_commit(page: Page, sample: Sample, look: Look) -> None:
    page.goto(f"/s/{sample.session}")
    ready(page, 9)
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("patched the lexer")
    page.keyboard.press("Enter")
    panel = page.locator("#commit")
    expect(panel.get_by_role("heading", name="patched the lexer")).to_be_visible()
    expect(panel).to_contain_text("smallest change")
    expect(panel).to_contain_text("instead of rewrite the parser")
    expect(panel).to_contain_text("tests need PYTHONPATH=src")
    expect(panel).to_contain_text("lexer.py")
    expect(panel).to_contain_text(f"restore {sample.second[:12]}")
    look(page)
    assert page.url.endswith(f"#c={sample.second}")
    page.reload()
    expect(panel.get_by_role("heading", name="patched the lexer")).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_two_marked_commits_are_compared(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}")
    ready(page, 9)
    page.keyboard.press("End")
    page.keyboard.press("m")
    page.keyboard.press("Home")
    page.keyboard.press("c")
    page.wait_for_url(f"**/s/{sample.session}/compare/{sample.first}/{sample.head}")


def test_two_commits_can_be_compared_by_keys_alone(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}")
    ready(page, 9)
    bar = page.get_by_role("group", name="To compare")
    for key in ("Home", "End"):
        page.keyboard.press(key)
        page.keyboard.press("m")
    expect(bar.get_by_role("listitem")).to_have_count(2)
    expect(page.locator(".row[aria-checked=true]")).to_have_count(2)
    bar.get_by_role("link", name="Compare").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/compare/{sample.first}/{sample.head}")  # the older one first


def test_two_commits_can_be_compared_by_touch(
    browser: Browser, server: Server, sample: Sample, look: Look
) -> None:
    context = browser.new_context(
        base_url=server.url,
        viewport={"width": PHONE[0], "height": PHONE[1]},
        has_touch=True,
        is_mobile=True,
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"/s/{sample.session}")
    ready(page, 9)
    bar = page.get_by_role("group", name="To compare")
    page.get_by_role("button", name="Compare").tap()
    expect(bar).to_contain_text("Choose two commits")
    rows = page.get_by_role("option")
    for title in ("patched the lexer", "reproduced"):
        rows.filter(has_text=title).tap()
    expect(bar.get_by_role("listitem")).to_have_count(2)
    look(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bar.get_by_role("link", name="Compare").tap()
    page.wait_for_url(f"**/compare/{sample.first}/{sample.second}")
    page.goto(f"/s/{sample.session}/c/{sample.first}")  # or on the page of each
    page.get_by_role("button", name="Mark").tap()
    page.goto(f"/s/{sample.session}/c/{sample.head}")
    page.get_by_role("button", name="Mark", exact=True).tap()
    expect(page.get_by_role("button", name="Marked")).to_be_visible()
    bar.get_by_role("link", name="Compare").tap()
    page.wait_for_url(f"**/compare/{sample.first}/{sample.head}")
    context.close()


def test_on_a_phone_a_commit_has_the_whole_screen(page: Page, sample: Sample, look: Look) -> None:
    phone(page).goto(f"/s/{sample.session}")
    page.get_by_role("option").filter(has_text="patched the lexer").click()
    page.wait_for_url(f"**/c/{sample.second}")
    expect(page.get_by_role("heading", name="patched the lexer")).to_be_visible()
    look(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_tree_draws_only_visible_rows(page: Page, many: str, look: Look) -> None:
    page.goto(f"/s/{many}")
    ready(page, MANY)
    rows = page.locator(".row")
    assert rows.count() < 100
    expect(page.locator("#row-0")).to_contain_text(f"commit number {MANY - 1}")
    page.locator("#tree").evaluate("one => { one.scrollTop = one.scrollHeight / 2; }")
    expect(page.get_by_text(f"commit number {MANY // 2}", exact=True)).to_be_visible()
    assert rows.count() < 100
    page.keyboard.press("End")
    expect(page.get_by_text("commit number 0", exact=True)).to_be_visible()
    look(page)


def test_tree_search_finds_commits_by_message(page: Page, many: str, look: Look) -> None:
    page.goto(f"/s/{many}")
    ready(page, MANY)
    page.keyboard.press("/")
    page.keyboard.type("number 37")
    count = page.locator("#count")
    expect(count).to_have_text("1 of 11")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("commit number 379")
    page.keyboard.press("Enter")
    expect(count).to_have_text("2 of 11")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("commit number 378")
    look(page)
    page.keyboard.press("Escape")
    expect(count).to_have_text(re.compile("commits"))


def test_tree_updates_when_another_process_commits(page: Page, server: Server) -> None:
    with ortet.open(server.store) as hub, hub.session("lively") as session:
        session.say("user", "begin")
        session.commit("the first of them")
        page.goto(f"/s/{session.id}")
        expect(page.get_by_role("option")).to_have_count(1)
        session.say("user", "go on")
        session.commit("the second of them")
        row = page.get_by_role("option").filter(has_text="the second of them")
        expect(row).to_be_visible(timeout=PATIENCE)


def test_tree_of_a_session_without_commits_shows_a_command(
    page: Page, server: Server, look: Look
) -> None:
    with ortet.open(server.store) as hub, hub.session("empty") as session:
        phone(page).goto(f"/s/{session.id}")
        title = page.get_by_role("heading", name="No commit yet")
        expect(title).to_be_in_viewport()
        look(page)
        session.say("user", "now there is something")
        page.reload()
        expect(page.locator(".no-commit a")).to_have_attribute("href", f"/s/{session.id}/journal")
        look(page)
        session.commit("the first")
        expect(page.get_by_role("option")).to_contain_text("the first")  # as it happens
        expect(title).to_be_hidden()


def test_tree_shows_hostile_text_without_executing_it(
    page: Page, sample: Sample, look: Look
) -> None:
    page.goto(f"/s/{sample.hostile}")
    ready(page, 2)
    expect(page.locator("#row-1")).to_contain_text(HOSTILE)
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#commit h2")).to_contain_text(HOSTILE)
    look(page)
    head = page.locator("#commit article").get_attribute("data-oid")
    parent = page.locator("#commit dd .oid").first.inner_text()
    for path in (f"c/{head}", f"compare/{parent}/{head}", "replay"):
        page.goto(f"/s/{sample.hostile}/{path}")
        expect(page.get_by_role("main")).to_contain_text("<script>")
        assert page.title() != "run"
        look(page, path[:3])


def test_rows_have_a_tag_and_bad_numbers_are_refused(server: Server, sample: Sample) -> None:
    client = server.client()
    whole = client.ask("GET", f"/s/{sample.session}/tree.json")
    again = client.ask(
        "GET", f"/s/{sample.session}/tree.json", headers={"If-None-Match": whole.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")
    part = client.get(f"/s/{sample.session}/tree.json", **{"from": 2, "upto": 4})
    assert part["oid"] == whole.data["oid"][2:4]
    for bad in ("-1", "x", "1e3", "9" * 30):
        reply = client.ask("GET", f"/s/{sample.session}/tree.json", upto=bad)
        assert (reply.status, reply.kind) == (422, "bad_request")
