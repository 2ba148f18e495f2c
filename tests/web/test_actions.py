"""Actions of pages: previewed, done only if the head has not moved, and undone."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, expect
from tests.fixtures.browser import Look, phone
from tests.fixtures.http_server import Client, Server

import ortet


def begin(page: Page, name: str) -> Locator:
    """Opens a dialog."""
    page.get_by_role("group", name="Actions").get_by_role("button", name=name).click()
    dialog = page.locator("#act")
    expect(dialog).to_be_visible()
    return dialog


def test_fork_dialog_creates_forks_and_links_to_them(
    page: Page, client: Client, look: Look
) -> None:
    path = client.new("forked")
    client.post(f"{path}/messages", {"role": "user", "content": "hello"})
    page.goto("/s/forked/journal")
    dialog = begin(page, "Fork")
    dialog.get_by_label("How many").fill("2")
    look(page)
    dialog.get_by_role("button", name="Fork").click()
    links = dialog.get_by_role("link")
    expect(links).to_have_text(["forked/1", "forked/2"])
    links.first.click()
    page.wait_for_url("**/s/*")
    expect(page.get_by_role("heading", level=1)).to_contain_text("forked/1")


def test_restore_dialog_shows_a_preview_and_the_restore_can_be_undone(
    page: Page, client: Client, tmp_path: Path, look: Look
) -> None:
    path = client.new("to-restore", workspace=str(tmp_path))
    file = tmp_path / "made.txt"
    file.write_text("first")
    first = client.post(f"{path}/commits", {"message": "first"})["oid"]
    file.write_text("second")
    (tmp_path / "<img src=x>.txt").write_text("x")
    client.post(f"{path}/thoughts", {"text": "a thought to be left"})
    client.post(f"{path}/commits", {"message": "second"})
    page.goto("/s/to-restore/journal")
    dialog = begin(page, "Restore")
    dialog.get_by_label("Commit").fill(first[:12])
    report = dialog.locator(".act-report")
    expect(report).to_contain_text("modified: made.txt")
    expect(report).to_contain_text("removed: <img src=x>.txt")
    expect(report).to_contain_text("it will not know of any more")
    assert file.read_text() == "second"  # it was told, and not done
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    dialog.get_by_role("button", name="Restore").click()
    expect(report).to_contain_text("Done")
    assert file.read_text() == "first"
    dialog.get_by_role("button", name="Undo this").click()
    expect(dialog.get_by_role("heading", level=2)).to_have_text("Undo the last move")
    expect(report).to_contain_text("modified: made.txt")
    dialog.get_by_role("button", name="Undo", exact=True).click()
    expect(report).to_contain_text("Done")
    assert file.read_text() == "second"
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".event", has_text="a thought to be left").first).to_be_visible()


def test_restore_after_the_head_moved_is_refused(
    page: Page, client: Client, troubles: list[str]
) -> None:
    path = client.new("raced")
    for word in ("a", "b"):
        client.post(f"{path}/thoughts", {"text": word})
        client.post(f"{path}/commits", {"message": word})
    page.goto("/s/raced/journal")
    dialog = begin(page, "Rewind")
    go = dialog.get_by_role("button", name="Rewind")
    expect(go).to_be_enabled()
    client.post(f"{path}/thoughts", {"text": "c"})
    head = client.post(f"{path}/commits", {"message": "c"})["oid"]
    go.click()
    expect(page.get_by_role("status")).to_contain_text("moved on meanwhile")
    expect(go).to_be_enabled()
    assert client.get(path)["head"]["oid"] == head
    troubles.clear()  # the browser says that it was refused
    go.click()
    expect(dialog.locator(".act-report")).to_contain_text("Done")
    assert client.get(path)["head"]["message"] == "b"


def test_dialog_shows_the_error_and_disables_the_action(
    page: Page, client: Client, troubles: list[str]
) -> None:
    path = client.new("cannot")
    client.post(f"{path}/commits", {"message": "only"})
    page.goto("/s/cannot/journal")
    dialog = begin(page, "Restore")
    dialog.get_by_label("Commit").fill("<b>no-such-commit</b>")
    expect(dialog.get_by_role("alert")).to_contain_text("<b>no-such-commit</b>")
    expect(dialog.get_by_role("button", name="Restore")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    troubles.clear()


def test_session_can_be_paused_by_keyboard(page: Page, client: Client) -> None:
    path = client.new("to-pause")
    page.goto("/s/to-pause/journal")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#act")
    dialog.get_by_label("Why").fill("lunch")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("h1 .badge.paused")).to_be_visible()
    assert client.get(path)["status"] == "paused"


def test_commit_page_can_fork_and_restore_the_commit(page: Page, client: Client) -> None:
    path = client.new("from-commit")
    oids = []
    for word in ("one", "two"):
        client.post(f"{path}/thoughts", {"text": word})
        oids.append(client.post(f"{path}/commits", {"message": word})["oid"])
    page.goto(f"/s/from-commit/c/{oids[0]}")
    dialog = page.locator("#act")
    page.get_by_role("button", name="Fork from here").click()
    expect(dialog).to_contain_text(oids[0][:12])
    dialog.get_by_role("button", name="Fork").click()
    expect(dialog.get_by_role("link")).to_have_text(["from-commit/1"])
    with page.expect_event("load"):
        dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Restore this").click()
    expect(dialog.get_by_label("Commit")).to_have_value(oids[0])
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog.locator(".act-report")).to_contain_text("Done")
    assert client.get(path)["head"]["oid"] == oids[0]


def test_undo_dialog_names_the_commit_that_it_undoes(page: Page, client: Client) -> None:
    path = client.new("to-undo")
    for word in ("first", "a message of more than twelve characters"):
        client.post(f"{path}/thoughts", {"text": word})
        client.post(f"{path}/commits", {"message": word})
    page.goto("/s/to-undo/journal")
    report = begin(page, "Undo").locator(".act-report")
    expect(report).to_contain_text("a message of more than twelve characters")


def test_commit_page_of_a_fork_shows_a_restore_command_with_its_name(
    page: Page, client: Client, tmp_path: Path
) -> None:
    path = client.new("original", workspace=str(tmp_path))
    client.post(f"{path}/commits", {"message": "first"})
    (fork,) = client.post(f"{path}/forks", {"n": 1})["forks"]
    head = client.get(path)["head"]["oid"]
    page.goto(f"/s/{fork['id']}/c/{head}")
    expect(page.get_by_text(f"ortet restore {head[:12]} -w original/1")).to_be_visible()


def test_preview_dialogs_record_no_event(page: Page, client: Client, server: Server) -> None:
    with ortet.open(server.store) as hub, hub.session("only-looked") as session:
        for word in ("one", "two"):
            session.say("user", word)
            session.commit(word)
    before = client.get(f"/sessions/{session.id}/events")["items"]
    page.goto(f"/s/{session.id}/journal")
    for name in ("Undo", "Rewind", "Restore"):
        dialog = begin(page, name)
        expect(dialog.locator(".act-report")).to_contain_text("1 event that it will not know of")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    page.reload()
    expect(page.locator("h1 .badge.paused")).to_be_visible()
    assert client.get(f"/sessions/{session.id}/events")["items"] == before
