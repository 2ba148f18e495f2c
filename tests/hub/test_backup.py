"""Backups: consistent while others write, incremental, and whole after kill -9."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.stores import Open
from tests.fixtures.waiting import eventually

from ortet.errors import Conflict, Invalid, OrtetError
from ortet.hub.hub import Hub

WRITER = """
import os, sys
from pathlib import Path
from ortet.config.environment import open_hub
store, name = Path(sys.argv[1]), sys.argv[2]
with open_hub(store, environ={"HOME": str(store / "nobody")}) as hub:
    s = hub.session(name)
    number = 0
    while True:
        number += 1
        s.say("user", f"message {number} " + os.urandom(3000).hex())
        s.artifact(f"file{number % 5}", data=os.urandom(40_000))
        c = s.commit(f"{number}")
        sys.stdout.write(c.oid + "\\n")
        sys.stdout.flush()
"""

BACKUP = """
import sys
from ortet.config.environment import open_hub
with open_hub(sys.argv[1], environ={"HOME": "/nobody"}) as hub:
    hub.maintenance.backup(sys.argv[2])
"""


def messages(hub: Hub) -> dict[str, list[str]]:
    return {row.name: [m.content for m in hub.get(row.id).messages()] for row in hub.sessions()}


def fill(hub: Hub, name: str = "s") -> None:
    with hub.session(name) as s:
        s.say("user", f"said in {name}")
        s.artifact("data", data=os.urandom(100_000))
        s.commit("one")
        s.say("user", "not committed")


def test_a_backup_is_a_store_with_all_sessions(opened: Open, hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    report = hub.maintenance.backup(tmp_path / "backup")
    assert report.copied
    with opened(tmp_path / "backup") as copy:
        copy.verify()
        assert messages(copy) == messages(hub)
        with copy.session("s") as s:
            s.say("user", "on")
            s.commit("on")


def test_a_second_backup_copies_only_what_is_new(opened: Open, hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    hub.store.objects.writer.seal_now()
    first = hub.maintenance.backup(tmp_path / "backup")
    fill(hub, "t")
    second = hub.maintenance.backup(tmp_path / "backup")
    assert second.reused == 1
    assert second.bytes < first.bytes * 2
    with opened(tmp_path / "backup") as copy:
        copy.verify()
        assert messages(copy) == messages(hub)


def test_a_backup_drops_what_a_sweep_has_freed(opened: Open, hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    hub.store.objects.writer.seal_now()
    hub.maintenance.backup(tmp_path / "backup")
    for row in hub.sessions():
        hub.governance.remove(row.id)
    hub.sweep(expire_ns=0, min_garbage=0)
    report = hub.maintenance.backup(tmp_path / "backup")
    assert report.removed == 1
    with opened(tmp_path / "backup") as copy:
        copy.verify()
        assert messages(copy) == {}


def test_archived_sessions_are_in_the_backup(opened: Open, hub: Hub, tmp_path: Path) -> None:
    fill(hub)
    (row,) = hub.sessions()
    hub.archive(row.id)
    hub.maintenance.backup(tmp_path / "backup")
    with opened(tmp_path / "backup") as copy:
        copy.unarchive(row.id)
        assert messages(copy) == messages(hub)


def test_a_store_or_another_directory_is_not_overwritten(
    opened: Open, hub: Hub, tmp_path: Path
) -> None:
    fill(hub)
    opened(tmp_path / "other").close()
    with pytest.raises(Conflict) as caught:
        hub.maintenance.backup(tmp_path / "other")
    assert caught.value.kind == "not_a_backup"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(Invalid):
        hub.maintenance.backup(tmp_path / "full")
    with pytest.raises(Invalid):
        hub.maintenance.backup(hub.store.root / "inside")


def test_a_backup_that_was_used_as_a_store_is_not_overwritten(
    opened: Open, hub: Hub, tmp_path: Path
) -> None:
    fill(hub)
    hub.maintenance.backup(tmp_path / "backup")
    with opened(tmp_path / "backup") as copy:
        fill(copy, "mine")
    with pytest.raises(Conflict) as caught:
        hub.maintenance.backup(tmp_path / "backup")
    assert caught.value.kind == "backup_changed"


def test_a_backup_that_was_only_read_can_be_continued(
    opened: Open, hub: Hub, tmp_path: Path
) -> None:
    fill(hub)
    hub.maintenance.backup(tmp_path / "backup")
    with opened(tmp_path / "backup") as copy:
        copy.verify()
        messages(copy)
    fill(hub, "t")
    hub.maintenance.backup(tmp_path / "backup")
    with opened(tmp_path / "backup") as copy:
        assert messages(copy) == messages(hub)


@pytest.mark.slow
def test_backups_are_consistent_while_other_processes_write(
    opened: Open, store: Path, tmp_path: Path
) -> None:
    opened().close()
    writers = [
        forked.Popen([sys.executable, "-c", WRITER, str(store), f"w{number}"], stdout=-1)
        for number in range(3)
    ]
    try:
        told: list[set[str]] = [set() for _ in writers]
        with opened() as hub:
            for _ in range(6):
                for seen, writer in zip(told, writers, strict=True):
                    assert writer.stdout is not None
                    seen.add(writer.stdout.readline().decode().strip())
                hub.maintenance.backup(tmp_path / "backup")
                with opened(tmp_path / "backup") as copy:
                    copy.verify()
                    for seen in told:  # all that was acknowledged before the backup began
                        assert {copy.show(oid).oid for oid in seen} == seen
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["catalog-copied", "objects-copied", "catalog-in-place", "moment"]
)
def test_a_killed_backup_leaves_the_one_before(
    opened: Open, hub: Hub, store: Path, tmp_path: Path, point: str
) -> None:
    target = tmp_path / "backup"
    fill(hub)
    hub.maintenance.backup(target)
    before = messages(hub)
    fill(hub, "t")
    hub.store.objects.writer.seal_now()
    after = messages(hub)
    run_killed(store, target, point)
    with opened(target) as copy:
        copy.verify()
        assert messages(copy) in (before, after)
    hub.maintenance.backup(target)
    with opened(target) as copy:
        copy.verify()
        assert messages(copy) == after


@pytest.mark.parametrize("point", ["catalog-copied", "objects-copied", "catalog-in-place"])
def test_a_killed_first_backup_is_completed_by_the_next(
    opened: Open, hub: Hub, store: Path, tmp_path: Path, point: str
) -> None:
    target = tmp_path / "backup"
    fill(hub)
    run_killed(store, target, point)
    with pytest.raises(OrtetError):
        opened(target, create=False)
    hub.maintenance.backup(target)
    with opened(target) as copy:
        copy.verify()
        assert messages(copy) == messages(hub)


def run_killed(store: Path, target: Path, point: str) -> None:
    """Run a backup in another process and kill it at a failpoint, or while it copies."""
    environ: Mapping[str, str] = {**os.environ}
    if point != "moment":
        environ = {**environ, "ORTET_FAULT": f"backup.{point}:kill"}
    command = [sys.executable, "-c", BACKUP, str(store), str(target)]
    with forked.Popen(command, env=environ) as process:
        if point == "moment":
            eventually(lambda: (target / "catalog.db.part").exists() or process.poll() is not None)
            process.kill()
        assert process.wait() in (0, -signal.SIGKILL)
        if point != "moment":
            assert process.returncode == -signal.SIGKILL
