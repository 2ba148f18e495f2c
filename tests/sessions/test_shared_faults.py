"""What sessions share when commits are refused or fail, others erase, or commit for a session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.stores import Open
from tests.fixtures.talk import texts

from ortet.config.environment import open_hub
from ortet.errors import Unavailable
from ortet.hub.hub import Hub
from ortet.memory.lexical.index import SqliteWordIndex


def holding(store: Path, text: bytes) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() and text in path.read_bytes()]


class TestFailed:
    def test_a_commit_that_failed_leaves_no_gap_in_the_next(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            b.learn("told", scope="agent")
            b.commit()
            a.learn("mine")
            with monkeypatch.context() as full:

                def flush(**_: object) -> None:
                    raise Unavailable("disk_full", "no space")

                full.setattr(hub.objects, "flush", flush)
                with pytest.raises(Unavailable):
                    a.commit()
            a.commit()
        hub.verify()
        with hub.session("a") as a:
            assert texts(a) == ["told", "mine"]


ERASE = """
import sys
from pathlib import Path
from typing import Any
from ortet.config.environment import open_hub
with open_hub(Path(sys.argv[1])) as hub:
    hub.erase(sys.argv[2])
"""


class TestErased:
    def test_erased_shared_fact_is_not_brought_back_by_another_process(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("a") as a:
            a.learn("pigeon 4711", scope="agent")
            a.commit()
        with open_hub(store) as hub, hub.session("b") as b:
            assert texts(b) == ["pigeon 4711"]
            forked.run([sys.executable, "-c", ERASE, store, a.id], check=True)
            assert texts(b) == []
            b.learn("new", scope="agent")
            b.commit()
            b.say("user", "more")
            b.commit()
        with open_hub(store) as hub:
            hub.sweep(min_garbage=0.0)
            hub.verify()
        assert holding(store, b"pigeon 4711") == []


class TestCommittedByOthers:
    def test_workspace_commit_by_others_keeps_the_restored_timeline(
        self, hub: Hub, opened: Open, work: Path
    ) -> None:
        a = hub.session("a", workspace=work, engine="folder")
        a.say("user", "one")
        a.commit()
        a.learn("x", scope="agent")
        a.commit()
        outside = opened().workspace(work, engine="folder")
        a.rewind()
        a.say("user", "after the restore")
        a.learn("y", scope="agent")
        a.commit()
        timeline = a.internals.row.timeline
        (work / "a.txt").write_text("two")
        outside.files.branch.refresh_head()
        outside.commit("by hand")
        assert hub.internals.session_manager.table.get(a.id).timeline == timeline
        said = [message.content for message in hub.get("a").messages()]
        assert said == ["one", "after the restore"]

    def test_a_session_that_was_opened_stays_open(self, hub: Hub, opened: Open, work: Path) -> None:
        with hub.session("a", workspace=work, engine="folder") as a:
            a.say("user", "one")
            a.commit()
            a.learn("x", scope="agent")
        outside = opened().workspace(work, engine="folder")
        with hub.session("a", scopes=["project:p"]) as a, hub.session("b") as b:
            outside.commit("by hand")
            row = hub.internals.session_manager.table.get(a.id)
            assert (row.status, row.scopes) == ("active", ["project:p"])
            a.say("user", "two")
            a.commit()
            assert texts(b) == ["x"]

    def test_workspace_commit_publishes_facts_of_a_paused_session(
        self, hub: Hub, opened: Open, work: Path
    ) -> None:
        with hub.session("a", workspace=work, engine="folder") as a:
            a.say("user", "one")
            a.commit()
            a.learn("x", scope="agent")
        opened().workspace(work, engine="folder").commit("by hand")
        with hub.session("b") as b:
            assert texts(b) == ["x"]


def test_event_erased_while_it_is_being_indexed_is_not_found(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_hub(store) as hub, hub.session("a") as a:
        a.say("user", "pigeon4711 is here")
        a.commit()
    add = SqliteWordIndex.add

    def late(self: SqliteWordIndex, *args: Any, **options: Any) -> None:
        monkeypatch.undo()
        forked.run([sys.executable, "-c", ERASE, store, a.id], check=True)
        add(self, *args, **options)

    monkeypatch.setattr(SqliteWordIndex, "add", late)
    with open_hub(store) as hub:
        assert hub.recall("pigeon4711") == []
    assert holding(store, b"pigeon4711") == []
