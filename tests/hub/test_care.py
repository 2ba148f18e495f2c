"""Looking after a store: verify, sweep, export, import."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortet.errors import Conflict, Corrupt, Invalid, NotFound, OrtetError, Unsupported
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.testing.clock import ManualClock
from ortet.workspaces.workspace import Workspace

Open = Callable[..., Hub]
Read = Callable[[Path], dict[str, str]]

HOUR = 3600 * 10**9


def files(root: Path) -> dict[str, bytes]:
    """Every file of a store that holds objects."""
    places = (root / "bucket", root / "local/tails", root / "local/index")
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def make_commits(ws: Workspace, count: int, size: int = 100_000) -> list[str]:
    oids = []
    for number in range(count):
        (ws.path / "noise").write_bytes(os.urandom(size))
        oids.append(ws.commit(str(number)).oid)
    return oids


class TestVerify:
    def test_verify_of_an_intact_store_finds_no_problems(self, hub: Hub, ws: Workspace) -> None:
        make_commits(ws, 3)
        ws.fork(2)
        told: list[tuple[int, int]] = []
        report = hub.verify(progress=lambda done, of: told.append((done, of)))
        assert report.problems == []
        assert told[-1][0] == told[-1][1] > 0

    @pytest.mark.parametrize("sealed", [True, False])
    def test_a_flipped_bit_is_corrupt_and_reported(
        self, opened: Open, hub: Hub, ws: Workspace, sealed: bool
    ) -> None:
        make_commits(ws, 2)
        if sealed:
            hub.sweep(min_garbage=0.0)
        hub.close()
        place = ws.store.root / ("bucket/packs" if sealed else "local/tails")
        file = max(place.iterdir(), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 16
        file.write_bytes(data)
        with pytest.raises(Corrupt, match=r"backup|bundle|copy") as caught:
            opened().verify()
        if caught.value.kind == "verify_failed":
            assert caught.value.details["report"]["problems"]

    def test_a_lost_pack_is_corrupt(self, opened: Open, hub: Hub, ws: Workspace) -> None:
        make_commits(ws, 2)
        hub.sweep(min_garbage=0.0)
        hub.close()
        for path in (ws.store.root / "bucket/packs").iterdir():
            path.unlink()
        with pytest.raises(Corrupt, match="import the commits from a bundle"):
            opened().verify()

    def test_a_head_that_leads_nowhere_is_corrupt(self, hub: Hub, ws: Workspace) -> None:
        from ortet.backends.base import Move

        ws.commit("first")
        hub.catalog.move([Move("branch:lost", None, from_hex("ab" * 32))], verb="test")
        with pytest.raises(Corrupt) as caught:
            hub.verify()
        (problem,) = caught.value.details["report"]["problems"]
        assert problem["oid"] == "ab" * 32

    def test_verify_succeeds_while_other_processes_commit(
        self, hub: Hub, ws: Workspace, work: Path, start: Callable[..., Any]
    ) -> None:
        ws.commit("first")
        worker = start("commit", hub.root, work, "x", 30)
        worker.wait_for("ready")
        worker.go()
        for _ in range(5):
            hub.verify()
        assert len(worker.done) == 30
        hub.verify()


class TestSweep:
    def test_sweep_keeps_commits_that_the_reflog_refers_to(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        oids = make_commits(ws, 3)
        noise = (work / "noise").read_bytes()
        ws.restore(oids[0])
        assert hub.sweep(min_garbage=0.0).removed == 0
        ws.restore("HEAD@{1}")
        assert (work / "noise").read_bytes() == noise

    def test_sweep_with_expiry_removes_old_reflog_commits_and_the_store_verifies(
        self, opened: Open, work: Path
    ) -> None:
        clock = ManualClock()
        hub = opened(clock=clock)
        ws = hub.workspace(work, engine="folder")
        oids = make_commits(ws, 3)
        ws.restore(oids[0])
        clock.advance(2 * HOUR)
        assert hub.sweep(expire_ns=3 * HOUR, min_garbage=0.0).removed == 0
        report = hub.sweep(expire_ns=HOUR, min_garbage=0.0)
        assert report.removed > 0
        assert report.bytes_freed > 150_000
        hub.verify()
        assert hub.sweep(min_garbage=0.0).removed == 0  # a sweep that expires nothing works too
        for oid in oids[1:]:
            with pytest.raises(NotFound):
                hub.show(oid)
        with pytest.raises(NotFound):
            ws.restore("HEAD@{1}")
        assert ws.commit("still there").oid == oids[0]
        (work / "noise").write_text("goes on")
        assert ws.commit("next").parents == [oids[0]]
        ws.rewind()
        assert hub.sweep(min_garbage=0.0).removed == 0  # the new reflog counts again
        assert hub.show("proj@{1}").message == "next"

    def test_a_dry_run_changes_nothing_and_tells_the_truth(self, opened: Open, work: Path) -> None:
        clock = ManualClock()
        hub = opened(clock=clock)
        ws = hub.workspace(work, engine="folder")
        ws.restore(make_commits(ws, 4)[1])
        clock.advance(2 * HOUR)
        before = files(hub.root), hub.catalog.ops(), hub.catalog.rows("care")
        dry = hub.sweep(dry_run=True, expire_ns=HOUR, min_garbage=0.0)
        assert (files(hub.root), hub.catalog.ops(), hub.catalog.rows("care")) == before
        real = hub.sweep(expire_ns=HOUR, min_garbage=0.0)
        assert dry.dry_run
        assert not real.dry_run
        assert (dry.removed, dry.kept, dry.packs_removed) == (
            real.removed,
            real.kept,
            real.packs_removed,
        )
        assert real.removed > 0
        assert dry.bytes_freed == real.bytes_freed

    def test_sweep_keeps_the_objects_that_private_machines_need(
        self, hub: Hub, work: Path, read: Read
    ) -> None:
        with hub.workspace(work, engine="folder", files="private") as private:
            (private.path / "new").write_text("uncommitted")
        hub.sweep(expire_ns=0, min_garbage=0.0)
        hub.verify()
        with hub.workspace(work, engine="folder", files="private") as private:
            private.land()
        assert (work / "new").read_text() == "uncommitted"

    def test_a_dropped_and_deleted_fork_is_freed(self, hub: Hub, ws: Workspace) -> None:
        (child,) = ws.fork()
        (child.path / "noise").write_bytes(os.urandom(300_000))
        child.commit("large")
        hub.drop("proj/1")
        hub.refs.delete("proj/1")
        assert hub.sweep(min_garbage=0.0).removed == 0
        assert hub.sweep(expire_ns=0, min_garbage=0.0).bytes_freed > 290_000
        hub.verify()
        assert ws.status().clean

    def test_an_age_below_zero_is_invalid(self, hub: Hub, ws: Workspace) -> None:
        oids = make_commits(ws, 2)
        ws.restore(oids[0])
        with pytest.raises(Invalid, match="an age from 0"):
            hub.sweep(expire_ns=-1)
        assert hub.show("proj@{1}").oid == oids[1]

    def test_sweep_loses_no_commit_made_by_other_processes(
        self, hub: Hub, ws: Workspace, work: Path, tmp_path: Path, together: Callable[..., Any]
    ) -> None:
        ws.commit("first")
        ws.close()
        (tmp_path / "other").mkdir()
        found = together(
            ("commit", hub.root, work, "x", 20),
            ("commit", hub.root, tmp_path / "other", "y", 20),
            ("sweep", hub.root, 6),
        )
        hub.verify()
        log = {commit.oid for name in ("proj", "other") for commit in hub.log(name)}
        assert {*found[0], *found[1]} <= log


class TestBundles:
    @pytest.fixture
    def bundle(self, hub: Hub, ws: Workspace, tmp_path: Path) -> Path:
        make_commits(ws, 2)
        hub.export("proj", tmp_path / "b.bundle")
        return tmp_path / "b.bundle"

    def test_bundle_imported_into_another_store_can_be_continued(
        self, hub: Hub, opened: Open, bundle: Path, work: Path, tmp_path: Path
    ) -> None:
        other = opened(tmp_path / "second")
        assert other.import_(bundle) == {"proj": hub.show("proj").oid}
        assert other.log("proj") == hub.log("proj")
        other.verify()
        other.restore("proj", to=tmp_path / "copy")
        assert (tmp_path / "copy/noise").read_bytes() == (work / "noise").read_bytes()
        (tmp_path / "copy/more").touch()
        going_on = other.workspace(tmp_path / "copy", name="proj", engine="folder")
        assert going_on.commit("goes on").parents == [hub.show("proj").oid]

    def test_importing_a_bundle_twice_changes_nothing(
        self, hub: Hub, opened: Open, bundle: Path, tmp_path: Path
    ) -> None:
        other = opened(tmp_path / "second")
        first = other.import_(bundle)
        before = len(other.catalog.ops())
        assert other.import_(bundle) == first
        assert len(other.catalog.ops()) == before
        assert hub.import_(bundle) == first  # where it came from, too
        assert [head.name for head in hub.refs.branches()] == ["proj"]

    def test_a_taken_name_gets_a_number_and_keeps_it(
        self, hub: Hub, opened: Open, bundle: Path, tmp_path: Path
    ) -> None:
        other = opened(tmp_path / "second")
        (tmp_path / "x/proj").mkdir(parents=True)
        mine = other.workspace(tmp_path / "x/proj", engine="folder").commit("mine")
        for _ in range(2):
            assert other.import_(bundle) == {"proj-2": hub.show("proj").oid}
        assert other.show("proj") == mine

    def test_import_keeps_numbered_branch_names_distinct(
        self, hub: Hub, ws: Workspace, opened: Open, tmp_path: Path
    ) -> None:
        one, two = make_commits(ws, 2)
        hub.refs.create("a", from_hex(one))
        hub.refs.create("a-2", from_hex(two))
        hub.export(["a", "a-2"], tmp_path / "b.bundle")
        other = opened(tmp_path / "second")
        (tmp_path / "a").mkdir()
        other.workspace(tmp_path / "a", engine="folder").commit("another a")
        for _ in range(2):
            names = other.import_(tmp_path / "b.bundle")
            assert sorted(names.values()) == sorted([one, two])
            assert {name: other.show(name).oid for name in names} == names
            assert "a" not in names

    def test_a_workspace_without_a_commit_keeps_its_name(
        self, hub: Hub, opened: Open, bundle: Path, tmp_path: Path
    ) -> None:
        other = opened(tmp_path / "second")
        (tmp_path / "x/proj").mkdir(parents=True)
        fresh = other.workspace(tmp_path / "x/proj", engine="folder")
        assert other.import_(bundle) == {"proj-2": hub.show("proj").oid}
        assert fresh.commit("mine").parents == []

    def test_import_renames_a_branch_whose_name_has_the_maximum_length(
        self, hub: Hub, ws: Workspace, opened: Open, tmp_path: Path
    ) -> None:
        one, two = make_commits(ws, 2)
        hub.refs.create("n" * 200, from_hex(one))
        hub.export("n" * 200, tmp_path / "one")
        hub.refs.move("n" * 200, from_hex(two), expect=from_hex(one))
        hub.export("n" * 200, tmp_path / "two")
        other = opened(tmp_path / "second")
        other.import_(tmp_path / "one")
        (name,) = other.import_(tmp_path / "two")
        assert other.show(name).oid == two

    def test_bundle_file_name_may_be_any_bytes(
        self, hub: Hub, ws: Workspace, opened: Open, tmp_path: Path
    ) -> None:
        ws.commit("first")
        file = tmp_path / os.fsdecode(b"b\xff")
        hub.export("proj", file)
        assert opened(tmp_path / "second").import_(file)

    def test_exported_commit_id_gets_a_generated_branch_name(
        self, hub: Hub, ws: Workspace, opened: Open, tmp_path: Path
    ) -> None:
        first, _ = make_commits(ws, 2)
        assert hub.export("proj~1", tmp_path / "b").refs == {f"bundle-{first[:12]}": first}
        assert opened(tmp_path / "second").import_(tmp_path / "b") == {
            f"bundle-{first[:12]}": first
        }

    def test_export_and_import_of_missing_names_is_refused(
        self, hub: Hub, ws: Workspace, tmp_path: Path
    ) -> None:
        ws.commit("first")
        with pytest.raises(NotFound, match="did you mean proj"):
            hub.export("proy", tmp_path / "b")
        with pytest.raises(Invalid, match="name a branch"):
            hub.export([], tmp_path / "b")
        with pytest.raises(NotFound, match="check the path"):
            hub.import_(tmp_path / "b")
        assert not list(tmp_path.glob("b*"))

    def test_import_of_a_file_that_is_no_bundle_is_refused(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        ws.commit("first")
        for path in (work, work / "a.txt"):
            with pytest.raises(Invalid, match="made by export"):
                hub.import_(path)
        with pytest.raises(Conflict, match="choose another name"):
            hub.export("proj", work / "a.txt")
        with pytest.raises(OrtetError):
            hub.export("proj", work / "no/such/place")

    def test_import_of_a_damaged_bundle_changes_nothing(
        self, opened: Open, bundle: Path, tmp_path: Path
    ) -> None:
        data = bytearray(bundle.read_bytes())
        data[len(data) // 2] ^= 1
        bundle.write_bytes(data)
        other = opened(tmp_path / "second")
        with pytest.raises(Corrupt):
            other.import_(bundle)
        assert other.refs.branches() == []
        other.verify()

    def test_import_of_a_bundle_made_with_another_key_is_refused(
        self, opened: Open, bundle: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "second").mkdir()
        (tmp_path / "second/key").write_text("11" * 32)
        (tmp_path / "second/config.toml").write_text('key_file = "key"\n')
        with pytest.raises(Unsupported, match="that key"):
            opened(tmp_path / "second").import_(bundle)

    def test_one_too_large_for_the_quota_can_be_read_after_raising_it(
        self, opened: Open, hub: Hub, ws: Workspace, tmp_path: Path
    ) -> None:
        make_commits(ws, 2, 900_000)
        hub.export("proj", tmp_path / "b")
        second = tmp_path / "second"
        second.mkdir()
        (second / "config.toml").write_text("quota = 1\n")
        with opened(second) as other:
            with pytest.raises(OrtetError, match="raise the quota"):
                other.import_(tmp_path / "b")
            assert other.refs.branches() == []
            (tmp_path / "small").mkdir()
            other.workspace(tmp_path / "small", engine="folder").commit("works")
        (second / "config.toml").write_text("quota = 9\n")
        with opened(second) as other:
            assert list(other.import_(tmp_path / "b")) == ["proj"]
            other.verify()


def test_damaged_rows_are_a_clear_error(
    hub: Hub, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.commit("first")
    real = hub.catalog.ops
    broken = [msgspec.structs.replace(op, time=None) for op in real()]
    monkeypatch.setattr(hub.catalog, "ops", lambda after=0: [] if after else broken)
    with pytest.raises(Corrupt) as caught:
        hub.sweep()
    assert caught.value.kind == "catalog_damaged"
    monkeypatch.setattr(hub.catalog, "check", lambda: ["row 1 is missing"])
    with pytest.raises(Corrupt) as caught:
        hub.verify()
    assert caught.value.details["report"]["problems"][0]["where"] == "catalog"
