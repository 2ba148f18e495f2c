"""merge and fork where a session works: the state of the fork comes with its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub


@pytest.fixture
def shop(ortet: Ortet, tmp_path: Path) -> Path:
    place = tmp_path / "shop"
    place.mkdir()
    (place / "price").write_text("10\n")
    ortet("init", cwd=place)
    with open_hub(ortet.store) as hub, hub.session("s", workspace=place, engine="folder") as s:
        s.say("user", "what is the port?")
        s.learn("it is 1", about="port")
        (kid,) = s.fork()
        kid.run("echo new > more")
        kid.learn("it is 2", about="port")
        s.forget(s.facts()[0].id)
        s.learn("it is 3", about="port")
    return place


def test_merge_joins_the_session_states_and_reports_contradictions(
    ortet: Ortet, shop: Path
) -> None:
    done = ortet.json("merge", "shop/1", cwd=shop)
    assert done["facts"] == ["it is 2"]
    assert done["contradictions"] == [{"about": "port", "ours": "it is 3", "theirs": "it is 2"}]
    assert (shop / "more").read_text() == "new\n"
    with open_hub(ortet.store) as hub:
        view = hub.get(next(row.id for row in hub.sessions() if row.name == "s"))
        assert {fact.text for fact in view.facts()} == {"it is 2", "it is 3"}
        assert [m.content for m in view.messages()] == ["what is the port?"]
        assert view.status == "paused"
        hub.verify()
    assert ortet.json("merge", "shop/1", cwd=shop)["up_to_date"] is True


def test_a_fork_where_a_session_works_is_a_session(ortet: Ortet, shop: Path) -> None:
    (made,) = ortet.json("fork", cwd=shop)
    assert made["name"] == "shop/2"
    with open_hub(ortet.store) as hub:
        row = next(row for row in hub.sessions() if row.branch == "shop/2")
        view = hub.get(row.id)
        assert [m.content for m in view.messages()] == ["what is the port?"]
        assert [fact.text for fact in view.facts()] == ["it is 3"]
    ortet("say", "-s", row.name, "and yours?", cwd=shop)
    assert ortet("run", "-w", "shop/2", "--", "cat", "price", cwd=shop).out == "10\n"
    with open_hub(ortet.store) as hub:
        assert [m.content for m in hub.get(row.id).messages()][-1] == "and yours?"


def test_files_alone_are_forked_while_the_session_is_in_use(ortet: Ortet, shop: Path) -> None:
    with open_hub(ortet.store) as hub, hub.session("s"):
        refused = ortet("fork", cwd=shop, code=6)
        assert "--files" in refused.err
        (made,) = ortet.json("fork", "--files", cwd=shop)
    with open_hub(ortet.store) as hub:
        assert all(row.branch != made["name"] for row in hub.sessions())


def test_merge_prints_contradictions_in_words(ortet: Ortet, shop: Path) -> None:
    assert "about port: ours 'it is 3', theirs 'it is 2'" in ortet("merge", "shop/1", cwd=shop).out


def test_a_closed_session_merges_files_only(ortet: Ortet, shop: Path) -> None:
    with open_hub(ortet.store) as hub:
        hub.session("s").finish()
    assert "facts" not in ortet.json("merge", "shop/1", cwd=shop)
    assert (shop / "more").read_text() == "new\n"
