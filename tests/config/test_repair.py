"""Repair: a store whose catalog is lost, damaged or went back comes back from its packs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.stores import Open

from ortet.config.repair import repair_store
from ortet.errors import Corrupt, NotFound
from ortet.hub.hub import Hub

KILLED = """
import os, sys
from pathlib import Path
from ortet.config.environment import open_hub
base = Path(sys.argv[1])
hub = open_hub(base / "store", environ={"HOME": str(base / "nobody")})
s = hub.session("money")
for number in range(20):
    s.say("user", f"message {number}")
    s.commit(f"c{number}")
s.say("user", "not committed")
os._exit(0)
"""


def messages(hub: Hub) -> dict[str, list[str]]:
    return {row.name: [m.content for m in hub.get(row.id).messages()] for row in hub.sessions()}


def files(place: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in place.rglob("*") if p.is_file()}


def fill(hub: Hub, edited: Path) -> None:
    with hub.session("fix", workspace=edited, engine="folder") as s:
        s.say("user", "the first message")
        s.learn("the sky is blue")
        s.commit("one")
        (edited / "file").write_text("two")
        s.say("user", "the second message")
        s.commit("two")
        fork = s.fork(1)[0]
        fork.say("user", "in the fork")
        fork.commit("fork")
    with hub.session("old") as s:
        s.say("user", "archived")
        s.commit("old")
    hub.archive(s.id)


def lose_catalog(store: Path) -> None:
    for path in store.glob("catalog.db*"):
        path.unlink()


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    edited = tmp_path / "edited"
    edited.mkdir()
    (edited / "file").write_text("one")
    return edited


def test_a_store_without_its_catalog_comes_back(
    opened: Open, store: Path, edited: Path, tmp_path: Path
) -> None:
    with opened() as hub:
        fill(hub, edited)
        before, heads = messages(hub), {ref.name: ref.oid for ref in hub.store.refs.branches()}
        commits = {info.oid for name in heads for info in hub.log(name)}
    lose_catalog(store)
    with pytest.raises(Corrupt) as caught:
        opened()
    assert caught.value.kind == "no_catalog"
    report = repair_store(store, opened, apply=True)
    assert report.catalog == "missing"
    assert sorted(report.sessions) == ["fix", "fix/1", "old"]
    with opened() as hub:
        hub.verify(restore=True)
        assert {
            ref.name: ref.oid for ref in hub.store.refs.branches() if ref.name in heads
        } == heads
        assert {info.oid for name in heads for info in hub.log(name)} == commits
        (old,) = [row for row in hub.sessions() if row.name == "old"]
        hub.unarchive(old.id)
        assert messages(hub) == before
        hub.restore(heads["fix"].hex(), to=tmp_path / "restored")
        assert files(tmp_path / "restored") == {"file": b"two"}
        with hub.session("fix", workspace=edited) as s:
            s.say("user", "on")
            s.commit("on")
        hub.verify()


def test_a_dry_run_changes_nothing_and_says_the_same(
    opened: Open, store: Path, edited: Path
) -> None:
    with opened() as hub:
        fill(hub, edited)
    lose_catalog(store)
    before = {str(p): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}
    dry = repair_store(store, opened)
    assert {str(p): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()} == before
    done = repair_store(store, opened, apply=True)
    assert not dry.applied
    assert (dry.branches, dry.sessions) == (done.branches, done.sessions)


def test_without_a_recovery_log_sessions_come_back_under_other_names(
    opened: Open, store: Path, edited: Path
) -> None:
    with opened() as hub:
        fill(hub, edited)
        before = messages(hub)
    lose_catalog(store)
    (store / "local" / "catalog.log").unlink()
    report = repair_store(store, opened, apply=True)
    assert report.found
    assert all(name.startswith("lost/") for name in report.found)
    with opened() as hub:
        hub.verify(restore=True)
        assert before["fix"] in messages(hub).values() or any(
            said[: len(before["fix"])] == before["fix"] for said in messages(hub).values()
        )
        assert before["fix/1"] in messages(hub).values()


@pytest.mark.parametrize("how", ["log deleted", "log cut", "log damaged", "older copy"])
def test_a_catalog_that_went_back_is_refused_until_it_is_repaired(
    opened: Open, store: Path, tmp_path: Path, how: str
) -> None:
    opened().close()
    older = (store / "catalog.db").read_bytes()
    with forked.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
        assert process.wait() == 0
    log = store / "catalog.db-wal"
    size = log.stat().st_size
    if how == "log deleted":
        log.unlink()
    elif how == "log cut":
        os.truncate(log, size // 2)
    elif how == "log damaged":
        data = bytearray(log.read_bytes())
        data[size // 2] ^= 1
        log.write_bytes(data)
    else:
        log.unlink()
        (store / "catalog.db").write_bytes(older)
    (store / "catalog.db-shm").unlink(missing_ok=True)
    with pytest.raises(Corrupt) as caught:
        opened()
    assert caught.value.kind == "catalog_behind"
    report = repair_store(store, opened, apply=True)
    assert report.catalog == "behind"
    with opened() as hub:
        hub.verify()
        assert messages(hub) == {"money": [f"message {number}" for number in range(20)]}
        with hub.session("money") as s:
            s.say("user", "on")
            s.commit("on")
        hub.verify()
    assert any("money" in text for text in report.lost)


def test_a_killed_process_is_no_damage(opened: Open, store: Path, tmp_path: Path) -> None:
    with forked.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
        assert process.wait() == 0
    with opened() as hub:
        hub.verify()
        assert len(messages(hub)["money"]) == 21


@pytest.mark.parametrize("page", [0, 1, 3, 5])
def test_a_damaged_page_costs_only_what_it_held(
    opened: Open, store: Path, edited: Path, page: int
) -> None:
    with opened() as hub:
        fill(hub, edited)
        before = messages(hub)
    data = bytearray((store / "catalog.db").read_bytes())
    data[page * 4096 + 2000] ^= 8
    (store / "catalog.db").write_bytes(data)
    with pytest.raises(Corrupt), opened() as hub:
        hub.verify()
    report = repair_store(store, opened, apply=True)
    assert report.catalog == "damaged"
    assert list((store / "local" / "damaged").glob("*-catalog.db"))
    with opened() as hub:
        hub.verify()
        for row in hub.sessions():
            if row.status == "archived":
                hub.unarchive(row.id)
        assert messages(hub) == before


def test_commits_that_nothing_refers_to_get_branches(
    opened: Open, store: Path, edited: Path
) -> None:
    with opened() as hub:
        fill(hub, edited)
        with hub.session("fix") as s:
            left = s.commit("left behind").oid
            s.say("user", "left")
            left = s.commit("left behind").oid
            s.restore(hub.log("fix")[-1].oid)
    lose_catalog(store)  # and with it the reflog
    report = repair_store(store, opened, apply=True)
    assert left in report.found.values()


def test_a_sound_store_is_left_alone(opened: Open, store: Path, edited: Path) -> None:
    with opened() as hub:
        fill(hub, edited)
    before = (store / "catalog.db").read_bytes()
    report = repair_store(store, opened, apply=True)
    assert (report.catalog, report.branches, report.found, report.lost) == ("sound", {}, {}, [])
    assert (store / "catalog.db").read_bytes() == before


def test_damaged_objects_are_named_as_lost(opened: Open, store: Path, edited: Path) -> None:
    with opened() as hub:
        fill(hub, edited)
        hub.store.objects.writer.seal_now()
    (pack,) = (store / "bucket" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    shutil.copyfile(pack, edited / "copy")
    pack.write_bytes(data)
    report = repair_store(store, opened, apply=True)
    assert report.lost


def test_a_directory_without_a_store_is_refused(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        repair_store(tmp_path / "none", opened)
