"""Approvals that wait in all sessions: none is missed, and few states are read."""

from __future__ import annotations

import tarfile
from pathlib import Path
from threading import Barrier, Thread

import pytest
from tests.fixtures.waiting import WAIT

import ortet
from ortet.backends.base import RowChange
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.journal.state.records import Approval
from ortet.journal.state.state import SessionState
from ortet.sessions.actions import approvals
from ortet.sessions.actions.approvals import pending_approvals
from ortet.sessions.context import SessionServices
from ortet.sessions.table import PENDING_APPROVALS, SessionRow

OLD = Path(__file__).parents[2] / "format" / "stores" / "0.1.0.tar.xz"


def pending_ids(hub: Hub) -> list[str]:
    return [one.id for _, one in pending_approvals(hub.internals.services)]


def names(hub: Hub) -> list[str]:
    return [row.name for row, _ in pending_approvals(hub.internals.services)]


def by_reading(hub: Hub) -> list[str]:
    """Return the first session of each open request, found by reading the state of every one."""
    found: dict[str, str] = {}
    for row in sorted(hub.sessions(), key=lambda row: row.created):
        if row.status not in ("closed", "archived"):
            for one in hub.get(row.id).actions.approvals():
                if one.state == "asked":
                    found.setdefault(one.id, row.name)
    return list(found.values())


def hints(hub: Hub) -> list[str]:
    return [row.key for row in hub.catalog.rows(PENDING_APPROVALS)]


def test_approval_is_listed_until_it_is_answered(hub: Hub) -> None:
    with hub.session("s") as s:
        first, second = (
            s.actions.request_approval("sell the boat"),
            s.actions.request_approval("buy a boat"),
        )
        assert pending_ids(hub) == [
            first,
            second,
        ]
        hub.approve(s.id, first)  # beside the writer
        assert pending_ids(hub) == [second]
        hub.approve(s.id, second, ok=False)
        assert names(hub) == hints(hub) == []
        s.say("user", "go on")
        assert names(hub) == []
        s.actions.request_approval("and another")
        assert names(hub) == ["s"]


def test_listing_approvals_loads_only_sessions_that_have_one(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(hub) == []  # this store is known
    for number in range(20):
        with hub.session(f"quiet-{number}") as s:
            s.say("user", "hello")
            s.commit("once")
            s.fork(2, machine=False)
    with hub.session("s") as s:
        s.actions.request_approval("sell the boat")
    read: list[str] = []
    services = hub.internals.services
    get = services.state_of

    def counted(id_: str) -> SessionState:
        read.append(id_)
        return get(id_)

    monkeypatch.setattr(services, "state_of", counted)
    assert names(hub) == ["s"]
    assert read == [s.id]


def test_forks_inherit_pending_approvals_as_one_item(hub: Hub) -> None:
    with hub.session("s") as s:
        s.actions.request_approval("sell the boat")
        forks = s.fork(2, machine=False)
        assert names(hub) == by_reading(hub) == ["s"]
        assert [one.actions.approvals()[0].state for one in forks] == ["asked"] * 2
        hub.approve(s.id, pending_approvals(hub.internals.services)[0][1].id)
        assert names(hub) == by_reading(hub) == []


def test_an_answer_counts_in_a_whatif_from_before_it(hub: Hub) -> None:
    with hub.session("s") as s:
        id_ = s.actions.request_approval("sell the boat")
        said = s.say("user", "which one?")
        s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
        assert names(hub) == []
        other = hub.whatif(s.id, said.seq, machine=False, message="the old one")
        assert [one.state for one in other.actions.approvals()] == ["given"]
        assert names(hub) == by_reading(hub) == []


def test_a_restore_does_not_take_an_answer_back(hub: Hub) -> None:
    with hub.session("s") as s:
        id_ = s.actions.request_approval("sell the boat")
        then = s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
        assert names(hub) == []
        s.restore(then.oid)
        assert [one.state for one in s.actions.approvals()] == ["given"]
        assert names(hub) == by_reading(hub) == []


def test_a_workspace_restore_does_not_take_an_answer_back(hub: Hub, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    with hub.session("s", workspace=place) as s:
        id_ = s.actions.request_approval("sell the boat")
        then = s.commit("asked")
        hub.approve(s.id, id_)
        s.say("user", "fine")
        s.commit("answered")
    assert names(hub) == []
    with hub.workspace(place) as workspace:
        workspace.restore(then.oid)
    assert names(hub) == by_reading(hub) == []


def test_pending_approvals_follow_a_merge_and_a_checkpoint(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "begin")
        (fork,) = s.fork(1, machine=False)
        fork.actions.request_approval("sell the boat")
        s.say("user", "meanwhile")
        s.merge(fork)
        assert names(hub) == by_reading(hub)
        record = fork.checkpoint()
    with hub.transfer.from_checkpoint(record, name="moved") as moved:
        assert names(hub) == by_reading(hub)
        assert [one.state for one in moved.actions.approvals()] == ["asked"]


def test_archived_session_lists_no_approvals_until_it_is_unarchived(hub: Hub) -> None:
    with hub.session("s") as s:
        s.actions.request_approval("sell the boat")
        s.commit("asked")
    hub.archive(s.id)
    assert names(hub) == []
    hub.unarchive(s.id)
    assert names(hub) == by_reading(hub) == ["s"]
    hub.remove(s.id)
    assert names(hub) == hints(hub) == []


def test_pending_approvals_are_found_in_a_store_without_approval_rows(hub: Hub) -> None:
    with hub.session("s") as s:
        s.actions.request_approval("sell the boat")
        (fork,) = s.fork(1, machine=False)
    with hub.session("quiet") as quiet:
        quiet.say("user", "hello")
    for kind in (PENDING_APPROVALS, "store"):
        for row in hub.catalog.rows(kind):
            hub.catalog.drop_row(kind, row.key)
    assert names(hub) == ["s"]
    assert sorted(hints(hub)) == sorted([s.id, fork.id])


def test_pending_approvals_are_found_in_a_store_of_an_earlier_release(tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    (store,) = {path.parent for path in tmp_path.rglob("FORMAT")}
    with ortet.open(store) as hub:
        assert hints(hub) == []
        assert names(hub) == by_reading(hub)
        with hub.session("new") as s:
            s.actions.request_approval("sell the boat")
            assert "new" in names(hub)


def test_approval_requested_during_a_listing_is_not_lost(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(hub) == []  # this store is known
    with hub.session("s") as s:
        hub.approve(s.id, s.actions.request_approval("sell the boat"))
        waiting = approvals._open_approvals

        def late(sessions: SessionServices, row: SessionRow) -> list[Approval]:
            found = waiting(sessions, row)
            s.actions.request_approval("buy another")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(approvals, "_open_approvals", late)
            pending_approvals(hub.internals.services)
        assert names(hub) == ["s"]


def test_concurrent_approval_requests_and_listings_lose_none(tmp_path: Path) -> None:
    store, many = tmp_path / "store", 6
    ortet.open(store).close()
    together = Barrier(many)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with ortet.open(store) as own, own.session(f"s{number}") as s:
                together.wait(WAIT)
                for turn in range(5):
                    id_ = s.actions.request_approval(f"turn {turn}")
                    assert id_ in [one.id for _, one in pending_approvals(own.internals.services)]
                    own.approve(s.id, id_)
                    assert id_ not in [
                        one.id for _, one in pending_approvals(own.internals.services)
                    ]
                s.actions.request_approval("the last")
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
    assert failed == []
    with ortet.open(store) as hub:
        assert sorted(names(hub)) == [f"s{number}" for number in range(many)]
        change = RowChange(PENDING_APPROVALS, "nobody", b"")
        hub.catalog.move([], verb="test", rows=[change])
        assert len(names(hub)) == many
        assert "nobody" not in hints(hub)


def test_a_request_made_before_a_fork_is_one_item_and_its_answer_counts_for_all(hub: Hub) -> None:
    with hub.session("s") as s:
        with pytest.raises(Refused) as waits:
            s.act(len, "abc", key="k", replay="once", approve="may I?")
        kids = s.fork(3)
        ((row, one),) = pending_approvals(hub.internals.services)
        assert (row.id, one.id) == (s.id, waits.value.details["id"])
        hub.approve(s, one.id, by="ann")
        assert pending_approvals(hub.internals.services) == []
        assert [kid.actions.approvals()[0].by for kid in kids] == ["ann"] * 3
        assert kids[1].act(len, "abc", key="k", replay="once", approve="may I?") == 3
        assert s.act(len, "abc", key="k", replay="once", approve="may I?") == 3
