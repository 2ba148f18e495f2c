"""What waits for a human in all sessions: nothing is missed, and few minds are read."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest

import ortet
from ortet.backend.abc import RowChange
from ortet.journal.things import Approval
from ortet.session import asking
from ortet.session.asking import all_waiting
from ortet.session.hub import Hub
from ortet.session.lifecycle import ASKS, SessionRow
from ortet.session.view import View

OLD = Path(__file__).parent.parent / "format" / "stores" / "0.1.0.tar.xz"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with ortet.open(tmp_path / "store") as opened:
        yield opened


def names(hub: Hub) -> list[str]:
    return [row.name for row, _ in all_waiting(hub)]


def by_reading(hub: Hub) -> list[str]:
    """The same, of every mind."""
    return [
        row.name
        for row in hub.sessions()
        if row.status not in ("closed", "archived")
        for one in hub.get(row.id).approvals()
        if one.state == "asked"
    ]


def hints(hub: Hub) -> list[str]:
    return [row.key for row in hub.catalog.rows(ASKS)]


def test_until_it_is_answered(hub: Hub) -> None:
    with hub.session("s") as s:
        first, second = s.request_approval("sell the boat"), s.request_approval("buy a boat")
        assert [one.id for _, one in all_waiting(hub)] == [first, second]
        hub.approve(s.id, first)  # beside the writer
        assert [one.id for _, one in all_waiting(hub)] == [second]
        hub.approve(s.id, second, ok=False)
        assert names(hub) == hints(hub) == []
        s.say("user", "go on")
        assert names(hub) == []
        s.request_approval("and another")
        assert names(hub) == ["s"]


def test_few_minds_are_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(hub) == []  # this store is known
    for number in range(20):
        with hub.session(f"quiet-{number}") as s:
            s.say("user", "hello")
            s.commit("once")
            s.fork(2, machine=False)
    with hub.session("s") as s:
        s.request_approval("sell the boat")
    read: list[str] = []
    get = hub.get

    def counted(id_: str) -> View:
        read.append(id_)
        return get(id_)

    monkeypatch.setattr(hub, "get", counted)
    assert names(hub) == ["s"]
    assert read == [s.id]


def test_forks_ask_for_what_they_were_forked_with(hub: Hub) -> None:
    with hub.session("s") as s:
        s.request_approval("sell the boat")
        s.fork(2, machine=False)
        hub.approve(s.id, all_waiting(hub)[0][1].id)
        assert names(hub) == by_reading(hub) == ["s/1", "s/2"]


def test_from_where_it_was_not_answered(hub: Hub) -> None:
    with hub.session("s") as s:
        id_ = s.request_approval("sell the boat")
        said = s.say("user", "which one?")
        s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
        assert names(hub) == []
        other = hub.whatif(s.id, said.seq, machine=False, message="the old one")
        assert names(hub) == by_reading(hub) == [other.name]


def test_a_restore_asks_again(hub: Hub) -> None:
    with hub.session("s") as s:
        id_ = s.request_approval("sell the boat")
        then = s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
        assert names(hub) == []
        s.restore(then.oid)
        assert names(hub) == by_reading(hub) == ["s"]


def test_a_restore_of_files_by_a_workspace_alone(hub: Hub, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    with hub.session("s", workspace=place) as s:
        id_ = s.request_approval("sell the boat")
        then = s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
    assert names(hub) == []
    with hub.workspace(place) as workspace:
        workspace.restore(then.oid)
    assert names(hub) == by_reading(hub) == ["s"]


def test_a_merge_and_a_checkpoint(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "begin")
        (fork,) = s.fork(1, machine=False)
        fork.request_approval("sell the boat")
        s.say("user", "meanwhile")
        s.merge(fork)
        assert names(hub) == by_reading(hub)
        record = fork.checkpoint()
    with hub.from_checkpoint(record, name="moved"):
        assert names(hub) == by_reading(hub)
        assert "moved" in names(hub)


def test_out_of_an_archive(hub: Hub) -> None:
    with hub.session("s") as s:
        s.request_approval("sell the boat")
        s.commit("asked")
    hub.archive(s.id)
    assert names(hub) == []
    hub.unarchive(s.id)
    assert names(hub) == by_reading(hub) == ["s"]
    hub.remove(s.id)
    assert names(hub) == hints(hub) == []


def test_a_store_of_an_earlier_layout(hub: Hub) -> None:
    with hub.session("s") as s:
        s.request_approval("sell the boat")
        (fork,) = s.fork(1, machine=False)
    with hub.session("quiet") as quiet:
        quiet.say("user", "hello")
    for kind in (ASKS, "store"):
        for row in hub.catalog.rows(kind):
            hub.catalog.drop_row(kind, row.key)
    assert names(hub) == ["s", "s/1"]
    assert sorted(hints(hub)) == sorted([s.id, fork.id])


def test_a_store_that_an_earlier_release_wrote(tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    (store,) = {path.parent for path in tmp_path.rglob("FORMAT")}
    with ortet.open(store) as hub:
        assert hints(hub) == []
        assert names(hub) == by_reading(hub)
        with hub.session("new") as s:
            s.request_approval("sell the boat")
            assert "new" in names(hub)


def test_who_asks_while_somebody_looks_is_not_forgotten(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(hub) == []  # this store is known
    with hub.session("s") as s:
        hub.approve(s.id, s.request_approval("sell the boat"))
        waiting = asking._waiting

        def late(hub: Hub, row: SessionRow) -> list[Approval]:
            found = waiting(hub, row)
            s.request_approval("buy another")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(asking, "_waiting", late)
            all_waiting(hub)
        assert names(hub) == ["s"]


def test_many_ask_and_look_at_once(tmp_path: Path) -> None:
    store, many = tmp_path / "store", 6
    ortet.open(store).close()
    together = Barrier(many)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with ortet.open(store) as own, own.session(f"s{number}") as s:
                together.wait(60)
                for turn in range(5):
                    id_ = s.request_approval(f"turn {turn}")
                    assert id_ in [one.id for _, one in all_waiting(own)]
                    own.approve(s.id, id_)
                    assert id_ not in [one.id for _, one in all_waiting(own)]
                s.request_approval("the last")
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    with ortet.open(store) as hub:
        assert sorted(names(hub)) == [f"s{number}" for number in range(many)]
        change = RowChange(ASKS, "nobody", b"")
        hub.catalog.move([], verb="test", rows=[change])
        assert len(names(hub)) == many
        assert "nobody" not in hints(hub)
