"""What an OrtetStore was told lasts: over kill -9, beside other processes, through time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.remote_hub import serving
from tests.fixtures.waiting import WAIT, eventually

import ortet
from ortet.config.environment import open_hub
from ortet.errors import Conflict
from ortet.integrations.langgraph import OrtetStore
from ortet.testing.clock import ManualClock

MINUTE = 60 * 10**9

WRITER = """
import sys
import ortet
from ortet.integrations.langgraph import OrtetStore

store = OrtetStore(ortet.open(sys.argv[1]))
for number in range(int(sys.argv[3])):
    store.put(("by", sys.argv[2]), str(number), {"n": number})
    store.put(("shared",), "last", {"by": sys.argv[2], "n": number})
    print(number, flush=True)
"""


def writer(tmp_path: Path, who: str, count: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(tmp_path / "store"), who, str(count)]
    return forked.Popen(words, stdout=subprocess.PIPE, text=True)


def test_acknowledged_puts_survive_sigkill(tmp_path: Path) -> None:
    process = writer(tmp_path, "killed", 10**9)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    said += [int(line) for line in process.stdout.read().splitlines() if line]
    process.stdout.close()
    with ortet.open(tmp_path / "store") as hub:
        store: Any = OrtetStore(hub)
        for number in said:
            assert store.get(("by", "killed"), str(number)).value == {"n": number}
        store.put(("by", "me"), "1", {})
        assert store.get(("shared",), "last").value["n"] >= said[-1]
        hub.verify()


def test_processes_write_at_once_and_see_one_another(tmp_path: Path) -> None:
    count = 40
    with ortet.open(tmp_path / "store") as hub:
        store: Any = OrtetStore(hub)
        assert store.search(()) == []  # so that what follows is read from the journal
        both = [writer(tmp_path, who, count) for who in "ab"]
        for number in range(count):
            store.put(("by", "me"), str(number), {"n": number})
        for process in both:
            process.communicate()
            assert process.returncode == 0
        for who in ("a", "b", "me"):
            found = store.search(("by", who), limit=1000)
            assert [item.value["n"] for item in found] == list(range(count))
        past = store.history(("shared",), "last")
        assert store.get(("shared",), "last").value == past[-1].value
        for who in "ab":  # the last one wins; every one is remembered
            told = [one.value["n"] for one in past if one.value["by"] == who]
            assert told == list(range(count))
        hub.verify()


def test_a_killed_writer_of_many_leaves_all_or_nothing(tmp_path: Path) -> None:
    code = WRITER.split("for number", 1)[0] + (
        "from langgraph.store.base import PutOp\n"
        "for number in range(10**9):\n"
        "    store.batch([PutOp(('m', str(number)), str(k), {'n': k}) for k in range(50)])\n"
        "    print(number, flush=True)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "store")]
    with forked.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
    with ortet.open(tmp_path / "store") as hub:
        store: Any = OrtetStore(hub)
        for space in store.list_namespaces(limit=1000):
            assert len(store.search(space, limit=1000)) == 50
        assert len(store.list_namespaces(limit=1000)) >= len(said)


@pytest.mark.server
def test_a_store_through_a_server_sees_the_same_items(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with (
        serving(tmp_path / "store") as url,
        open_hub(url, environ=home) as far,
        ortet.open(tmp_path / "store") as near,
    ):
        there: Any = OrtetStore(far)
        here: Any = OrtetStore(near)
        there.put(("a",), "1", {"n": 1}, ttl=5)
        here.put(("a",), "2", {"n": 2})
        assert there.get(("a",), "2").value == {"n": 2}
        assert here.search(("a",), filter={"n": 1})[0].key == "1"
        there.delete(("a",), "1")
        assert [item.key for item in here.search(())] == ["2"]
        assert [one.value for one in there.history(("a",), "1")] == [{"n": 1}, None]
        there.commit("from afar")
        near.verify()


def test_items_expire_after_their_ttl_unless_refreshed(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_hub(tmp_path / "store", clock=clock) as hub:
        store: Any = OrtetStore(hub, ttl={"default_ttl": 10, "refresh_on_read": True})
        other: Any = OrtetStore(hub, ttl={"refresh_on_read": False})
        assert store.supports_ttl
        space = ("a",)
        store.put(space, "default", {})
        store.put(space, "short", {}, ttl=1)
        store.put(space, "ever", {}, ttl=None)
        other.put(space, "other", {})
        assert len(other.search(space)) == 4
        clock.advance(MINUTE)
        assert store.get(space, "short") is None  # gone at once, swept or not
        clock.advance(8 * MINUTE)
        assert store.get(space, "default") is not None  # and has 10 minutes again
        clock.advance(9 * MINUTE)
        assert {one.key for one in other.search(space)} == {"default", "ever", "other"}
        clock.advance(MINUTE)
        assert other.get(space, "default") is None  # the other store does not refresh
        assert {one.key for one in store.search(space)} == {"ever", "other"}
        assert store.sweep_ttl() == 2
        assert store.sweep_ttl() == 0
        assert [one.value for one in store.history(space, "short")] == [{}, None]
        store.put(space, "short", {"new": True}, ttl=1)
        found = store.get(space, "short", refresh_ttl=False)
        assert found.created_at == found.updated_at
        clock.advance(MINUTE - 1)
        assert store.get(space, "short", refresh_ttl=False) is not None
        clock.advance(1)
        assert store.get(space, "short", refresh_ttl=False) is None
        assert store.list_namespaces() == [space]
        for ttl in (0, -1, float("nan")):
            with pytest.raises(ortet.Invalid):
                store.put(space, "bad", {}, ttl=ttl)


def test_a_search_refreshes_the_ttl_of_its_results(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_hub(tmp_path / "store", clock=clock) as hub:
        store: Any = OrtetStore(hub)
        other: Any = OrtetStore(hub)
        for key in "ab":
            store.put(("m",), key, {"text": key}, ttl=2)
        other.search(("m",), refresh_ttl=False)
        clock.advance(MINUTE)
        assert len(store.search(("m",), query="a", limit=1)) == 1
        clock.advance(MINUTE)
        for one in (store, other):
            assert [item.key for item in one.search(("m",), refresh_ttl=False)] == ["a"]


def test_the_ttl_sweeper_deletes_expired_items(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub, ttl={"default_ttl": 1e-9})
    assert OrtetStore(hub).start_ttl_sweeper().done()
    store.put(("a",), "k", {})
    running = store.start_ttl_sweeper(0.001)

    def is_swept() -> bool:
        assert not running.done()
        return len(store.history(("a",), "k")) == 2

    eventually(is_swept)
    assert store.history(("a",), "k")[-1].value is None
    assert store.stop_ttl_sweeper(WAIT)
    assert running.done()


def test_a_restored_commit_brings_back_its_items(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    space = ("a",)
    store.put(space, "1", {"n": 1})
    store.put(space, "2", {"n": 2})
    commit = store.commit("two things")
    store.put(space, "1", {"n": "changed"})
    store.delete(space, "2")
    store.put(space, "3", {"n": 3})
    with hub.session("langgraph-store") as session:
        (fork,) = session.fork(1)
        session.restore(commit.oid)
        name = fork.name
    assert [item.value["n"] for item in store.search(space)] == [1, 2]
    store.put(space, "1", {"n": "else"})
    assert store.get(space, "1").value == {"n": "else"}
    assert store.get(space, "2").value == {"n": 2}
    assert store.get(space, "3") is None
    branch: Any = OrtetStore(hub, name=name)
    assert [item.value["n"] for item in branch.search(space)] == ["changed", 3]
    hub.verify()


def test_missing_item_rows_are_rebuilt_from_the_journal(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub, index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]})
    for number in range(30):
        store.put(("a", str(number % 3)), str(number), {"n": number})
    for number in range(0, 30, 4):
        store.delete(("a", str(number % 3)), str(number))
    store.put(("a", "1"), "1", {"n": "again"})
    before = store.search((), limit=100)
    timeline = store._journal.timeline()
    kind = f"langgraph-item/{timeline}"
    rows = [(row.key, row.value) for row in hub.catalog.rows(kind)]
    for key, _ in rows:
        hub.catalog.drop_row(kind, key)
    hub.catalog.drop_row(f"beside/{timeline}", kind)
    again: Any = OrtetStore(hub)
    assert again.search((), limit=100) == before
    assert [(row.key, row.value) for row in hub.catalog.rows(kind)] == rows


def test_removing_the_session_removes_its_item_rows(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    for number in range(3):
        store.put(("a",), str(number), {"n": number})
    id_, timeline = store._journal.session, store._journal.timeline()
    assert len(hub.catalog.rows(f"langgraph-item/{timeline}")) == 3
    hub.remove(id_)
    assert hub.catalog.rows(f"langgraph-item/{timeline}") == []
    assert hub.catalog.rows(f"beside/{timeline}") == []
    assert store.get(("a",), "1") is None
    store.put(("a",), "1", {"n": "anew"})
    assert store.get(("a",), "1").value == {"n": "anew"}


def test_put_into_a_closed_or_archived_session_is_refused_with_advice(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    store.put(("a",), "1", {"n": 1})
    hub.session("langgraph-store").finish()
    with pytest.raises(Conflict, match=r"is closed.*OrtetStore\(hub, name=") as caught:
        store.put(("a",), "1", {"n": 2})
    assert "unarchive" not in str(caught.value)
    assert store.get(("a",), "1").value == {"n": 1}
    more: Any = OrtetStore(hub, name="more")
    more.put(("a",), "1", {"n": 2})
    hub.archive("more")
    with pytest.raises(Conflict, match=r"is archived.*hub\.unarchive\('more'\)"):
        more.put(("a",), "1", {"n": 3})
    hub.unarchive("more")
    more.put(("a",), "1", {"n": 3})
    assert more.get(("a",), "1").value == {"n": 3}


def test_items_of_trimmed_events_are_read_from_commits(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    for number in range(20):
        store.put(("a",), str(number), {"n": number})
    store.commit("all")
    store.put(("a",), "late", {"n": 20})
    hub.governance.retain()
    again: Any = OrtetStore(hub)
    for one in (store, again):
        assert [item.value["n"] for item in one.search((), limit=100)] == list(range(21))
        assert one.get(("a",), "3").value == {"n": 3}
    store.commit("more")
    hub.governance.retain()
    assert store.get(("a",), "3").value == {"n": 3}


def test_an_erased_item_is_gone_and_can_be_put_again(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    for number in range(5):
        store.put(("a",), str(number), {"text": f"secret {number}"})
    assert len(store.search(("a",), query="secret")) == 5
    past = store.history(("a",), "2")
    hub.erase("langgraph-store", seqs=[one.seq for one in past])
    assert store.get(("a",), "2") is None
    assert [item.key for item in store.search(("a",), query="secret")] == ["0", "1", "3", "4"]
    store.put(("a",), "2", {"text": "new"})
    assert store.get(("a",), "2").value == {"text": "new"}
    hub.verify()


def test_an_item_is_erased_with_its_vectors_and_its_past(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with ortet.open(place) as hub:
        store: Any = OrtetStore(
            hub, index={"dims": 1, "embed": lambda texts: [[len(text) * 1.0] for text in texts]}
        )
        for text in ("first XYZZY", "second XYZZY", "XYZZY " * 200_000):
            store.put(("a",), "secret", {"text": text})
        store.put(("a",), "other", {"text": "stays"})
        store.commit("it is in a commit too")
        assert store.erase(("a",), "nothing") is None
        receipt = store.erase(("a",), "secret")
        assert len(receipt.events) > 8  # puts, parts, vectors, and that it was deleted
        assert store.get(("a",), "secret") is None
        assert store.history(("a",), "secret") == []
        assert [item.key for item in store.search(("a",), query="XYZZY")] == ["other"]
        hub.verify()
    with ortet.open(place) as hub:
        told = hub.get("langgraph-store").records()
        assert not any("XYZZY" in str(event.data) for event in told)
        again: Any = OrtetStore(hub)
        assert [item.key for item in again.search(())] == ["other"]


def test_a_closed_session_takes_nothing_more(hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    store.put(("a",), "k", {"n": 1})
    hub.session("langgraph-store").finish()
    with pytest.raises(ortet.Conflict, match="closed"):
        store.put(("a",), "k", {"n": 2})
    assert store.get(("a",), "k").value == {"n": 1}


def test_ten_thousand_items_are_searched_and_filtered(hub: ortet.Hub) -> None:
    from langgraph.store.base import PutOp

    store: Any = OrtetStore(hub)
    for start in range(0, 10_000, 1000):
        store.batch(
            [
                PutOp(("m", str(n % 7)), str(n), {"n": n, "text": f"thing number {n}"})
                for n in range(start, start + 1000)
            ]
        )
    again: Any = OrtetStore(hub)
    assert again.get(("m", str(7777 % 7)), "7777").value["n"] == 7777
    assert len(again.search(("m",), limit=20_000)) == 10_000
    assert [item.value["n"] for item in again.search(("m",), filter={"n": {"$gte": 9998}})] == [
        9998,
        9999,
    ]
    assert again.search(("m",), query="thing 4321", limit=1)[0].key == "4321"
    again.put(("m", "0"), "new", {"n": -1})
    assert [item.key for item in again.search(("m", "0"), filter={"n": -1})] == ["new"]
    assert len(again.list_namespaces(max_depth=1)) == 1


def test_a_store_whose_session_was_removed_starts_empty(tmp_path: Path, hub: ortet.Hub) -> None:
    store: Any = OrtetStore(hub)
    store.put(("a",), "k", {"text": "green tea"})
    assert store.search(("a",), query="tea")
    with ortet.open(tmp_path / "store") as other:
        beside: Any = OrtetStore(other)
        other.remove(other.get("langgraph-store").id)
        assert store.get(("a",), "k") is None
        assert store.search(("a",)) == store.list_namespaces() == []
        assert store.history(("a",), "k") == []
        beside.put(("a",), "k", {"text": "again"})
        assert store.get(("a",), "k").value == {"text": "again"}
        other.remove(other.get("langgraph-store").id)
    store.put(("a",), "k", {"text": "once more"})
    assert [one.value["text"] for one in store.history(("a",), "k")] == ["once more"]
    assert [session.name for session in hub.sessions()] == ["langgraph-store"]
    assert hub.verify().problems == []
