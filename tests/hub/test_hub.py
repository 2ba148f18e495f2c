"""A hub: what it opens, what it refuses, what it leaves alone, and how it ends."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ortet
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, OrtetError, Refused
from ortet.history.commits import CommitInfo
from ortet.hub.hub import Hub
from ortet.workspaces.workspace import Workspace

Read = Callable[[Path], dict[str, str]]
Open = Callable[..., Hub]


def seen(root: Path) -> list[tuple[str, int, int, int]]:
    """Every name below a directory, with what tells whether it was touched."""
    paths = [root, *sorted(root.rglob("*"))]
    stats = [(str(path), path.lstat()) for path in paths]
    return [(name, st.st_ino, st.st_mtime_ns, st.st_ctime_ns) for name, st in stats]


class TestDirectory:
    def test_commits_forks_and_sweeps_write_no_extra_file_into_the_directory(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        before = seen(work)
        for engine in ("folder", "overlay"):
            with hub.workspace(work, engine=engine) as ws:
                first = ws.commit("first")
                ws.status()
                for child in ws.fork(2):
                    child.commit("child")
        hub.restore(first.oid, to=tmp_path / "copy")
        hub.verify()
        hub.sweep()
        assert seen(work) == before
        assert sorted(os.listdir(tmp_path)) == ["copy", "proj", "store"]
        assert (tmp_path / "copy").stat().st_mtime_ns == work.stat().st_mtime_ns

    def test_workspace_path_that_is_a_file_is_refused(self, hub: Hub, work: Path) -> None:
        with pytest.raises(Invalid, match="is a file: give the directory it is in"):
            hub.workspace(work / "a.txt")

    @pytest.mark.parametrize("name", ["missing", "link", "x" * 5000])
    def test_a_missing_one_says_to_create_it(self, hub: Hub, work: Path, name: str) -> None:
        (work / "link").symlink_to("nowhere")
        with pytest.raises(NotFound, match="create it first"):
            hub.workspace(work / name)

    def test_workspace_without_path_and_name_is_refused(self, hub: Hub) -> None:
        with pytest.raises(Invalid, match="give a directory"):
            hub.workspace()

    @pytest.mark.parametrize("name", [b"caf\xe9", "日本".encode(), b"a b\n#c"])
    def test_workspace_directory_name_may_be_any_bytes(
        self, hub: Hub, opened: Open, tmp_path: Path, name: bytes
    ) -> None:
        place = tmp_path / os.fsdecode(name)
        place.mkdir()
        (place / os.fsdecode(b"f\xff")).write_text("x")
        with hub.workspace(place, engine="folder") as ws:
            first = ws.commit("first")
        hub.close()
        with opened() as again, again.workspace(place, engine="folder") as ws:
            assert (ws.head, ws.path, ws.status().clean) == (first, place, True)

    def test_the_store_and_a_workspace_never_overlap(
        self, hub: Hub, tmp_path: Path, store: Path
    ) -> None:
        link = tmp_path / "link"
        link.symlink_to(store / "local")
        for place in (store, store / "local", store / "bucket", tmp_path, link):
            with pytest.raises(Invalid, match="put the store elsewhere") as caught:
                hub.workspace(place)
            assert caught.value.kind == "store_in_workspace"
        assert list(hub.workspaces.table.all()) == []

    def test_a_view_into_a_machine_is_not_taken_for_the_original(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.workspace(work, engine="overlay") as ws:
            first = ws.commit("first")
            with pytest.raises(Invalid, match="directory of the host"):
                hub.workspace(ws.path)
            with pytest.raises(Invalid, match="directory of the host"):
                hub.restore(first.oid, to=ws.path / "new")
        assert not (work / "new").exists()

    def test_directory_next_to_the_store_can_be_a_workspace(self, hub: Hub, store: Path) -> None:
        beside = store.with_name("store-2")
        beside.mkdir()
        assert hub.workspace(beside, engine="folder").name == "store-2"


class TestReadOnly:
    @pytest.fixture
    def frozen(self, work: Path) -> Iterator[Path]:
        """The directory as it is seen through a read-only mount."""
        place = work.with_name("frozen")
        place.mkdir()
        subprocess.run(["mount", "--bind", str(work), str(place)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        yield place
        subprocess.run(["umount", "-l", str(place)], check=True)

    @pytest.mark.root
    def test_read_only_directory_can_be_committed_and_forked_but_not_restored(
        self, hub: Hub, frozen: Path, work: Path
    ) -> None:
        with hub.workspace(frozen, engine="folder") as ws:
            first = ws.commit("first")
            (work / "b").touch()
            ws.commit("second")
            with pytest.raises(Refused, match="make the place writable"):
                ws.restore(first.oid)
            (child,) = ws.fork()
            (child.path / "c").touch()
            with pytest.raises(Refused, match="make the place writable"):
                child.land()
        with hub.workspace(frozen, engine="folder") as again:
            assert again.status().clean


class TestRestore:
    def test_restore_writes_into_a_new_or_empty_directory(
        self, hub: Hub, ws: Workspace, work: Path, tmp_path: Path, read: Read
    ) -> None:
        first = ws.commit("first")
        (tmp_path / "empty").mkdir()
        for place in ("new", "deep/er/new", "empty"):
            report = hub.restore(first.oid, to=tmp_path / place)
            assert (read(tmp_path / place), report.losses) == (read(work), [])
        again = hub.workspace(tmp_path / "new", engine="folder").commit("again")
        assert again.state == first.state

    def test_a_place_that_is_taken_is_left_alone(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        first = ws.commit("first")
        before = read(work)
        for place in (work, work / "a.txt"):
            with pytest.raises(Invalid, match="give a new place"):
                hub.restore(first.oid, to=place)
        assert read(work) == before

    def test_restore_into_the_store_is_refused(self, hub: Hub, ws: Workspace, store: Path) -> None:
        first = ws.commit("first")
        for place in (store / "x", store / "bucket/x"):
            with pytest.raises(Invalid, match="give another directory"):
                hub.restore(first.oid, to=place)
            assert not place.exists()

    def test_restore_of_an_unknown_commit_makes_no_directory(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with pytest.raises(NotFound, match="ortet branch"):
            hub.restore("nope", to=tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_restore_of_a_damaged_commit_leaves_no_directory(
        self, opened: Open, hub: Hub, ws: Workspace, work: Path, tmp_path: Path
    ) -> None:
        (work / "big").write_bytes(os.urandom(300_000))
        first = ws.commit("first")
        hub.sweep(min_garbage=0.0)
        hub.close()
        (pack,) = (ws.store.root / "bucket/packs").iterdir()
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
        with opened() as later, pytest.raises(Corrupt):
            later.restore(first.oid, to=tmp_path / "new")
        assert sorted(os.listdir(tmp_path)) == ["proj", "store"]


class TestHistory:
    def test_log_show_and_diff_resolve_branches_ids_and_ancestors(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        commits: list[CommitInfo] = []
        for number in range(3):
            (work / "n").write_text(str(number))
            commits.insert(0, ws.commit(str(number)))
        assert hub.log() == hub.log("proj") == commits
        assert hub.log("proj", limit=2) == commits[:2]
        assert hub.log(commits[2].oid[:12]) == commits[2:]
        assert hub.show("proj~1") == commits[1]
        assert [c.path for c in hub.diff("proj~1", "proj") if c.kind == "modified"] == ["n"]

    def test_log_without_a_branch_name_is_refused_if_there_are_several(
        self, hub: Hub, ws: Workspace
    ) -> None:
        with pytest.raises(NotFound, match="first commit"):
            hub.log()
        ws.fork(2)
        with pytest.raises(Invalid, match="proj/1"):
            hub.log()


class TestClose:
    def test_leaving_the_block_closes_workspaces_and_forks(self, store: Path, work: Path) -> None:
        with ortet.open(store) as hub:
            ws = hub.workspace(work, engine="folder")
            kids = ws.fork(2)
            overlay = hub.workspace(work, engine="overlay")
            (private,) = overlay.fork()
        for one in (ws, *kids, overlay, private):
            with pytest.raises(Invalid, match="open it again"):
                one.run("true")
        with pytest.raises(Invalid, match="open the store again"):
            hub.log()
        hub.close()

    def test_failing_close_of_one_workspace_still_closes_the_others(
        self, opened: Open, work: Path, tmp_path: Path
    ) -> None:
        hub = opened()
        (tmp_path / "other").mkdir()
        first, last = hub.workspace(work), hub.workspace(tmp_path / "other")

        class Broken(Exception):
            pass

        def fail() -> None:
            raise Broken

        last.files.machine.close = fail  # type: ignore[method-assign]
        with pytest.raises(Broken):
            hub.close()
        with pytest.raises(Invalid):
            first.commit()
        with pytest.raises(Invalid, match="the catalog was closed"):
            hub.catalog.heads()

    def test_a_workspace_that_lost_its_home_can_still_be_closed(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        ws.commit("first")
        (work / "b").touch()
        ws.commit("second")
        shutil.rmtree(ws.store.root / "local/machines")
        hub.close()

    def test_a_refused_commit_does_not_fail_it(self, opened: Open, store: Path, work: Path) -> None:
        store.mkdir()
        (store / "config.toml").write_text("quota = 0\n")
        hub = opened()
        ws = hub.workspace(work, engine="folder")
        with pytest.raises(OrtetError, match="raise the quota"):
            ws.commit("refused")
        hub.close()


class TestTogether:
    def test_two_hubs_of_one_process_see_each_other(
        self, opened: Open, work: Path, tmp_path: Path
    ) -> None:
        one, two = opened(), opened()
        first = one.workspace(work, engine="folder").commit("first")
        assert two.show("proj") == first
        (tmp_path / "other").mkdir()
        (tmp_path / "other/x").write_text("x")
        second = two.workspace(tmp_path / "other", engine="folder").commit("second")
        assert one.show("other") == second
        two.sweep(min_garbage=0.0)
        assert one.verify() == two.verify()
        one.restore(second.oid, to=tmp_path / "copy")

    def test_processes_that_make_one_store_at_once(
        self, store: Path, opened: Open, together: Callable[..., list[Any]]
    ) -> None:
        assert len(set(together(*[("create", store)] * 5))) == 1
        opened().verify()
        assert [name for name in os.listdir(store) if name.startswith("FORMAT")] == ["FORMAT"]

    def test_parent_and_child_process_can_both_commit_after_os_fork(
        self, hub: Hub, work: Path, together: Callable[..., list[Any]]
    ) -> None:
        ((code, oid),) = together(("split", hub.root, work))
        assert code == 0
        assert [commit.message for commit in hub.log("proj")] == [
            "worker",
            "in the child",
            "before",
        ]
        assert hub.show("proj").oid == oid
        hub.verify()

    def test_threads_with_separate_workspaces_commit_concurrently(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        from ortet.testing.processes import run_in_threads

        def commits(number: int) -> list[str]:
            place = tmp_path / f"w{number}"
            place.mkdir()
            made = []
            with hub.workspace(place, engine="folder") as ws:
                for turn in range(10):
                    (place / "f").write_bytes(os.urandom(20_000))
                    made.append(ws.commit(str(turn)).oid)
            return made

        made = run_in_threads(commits, [(number,) for number in range(4)])
        for number, oids in enumerate(made):
            assert [commit.oid for commit in hub.log(f"w{number}")] == oids[::-1]
        hub.verify()


class TestTopLevel:
    def test_every_error_is_a_name_of_the_package(self) -> None:
        found = [name for name in ortet.__all__ if isinstance(getattr(ortet, name), type)]
        errors = {name for name in found if issubclass(getattr(ortet, name), ortet.OrtetError)}
        kinds = [kind for kind in vars(ortet.errors).values() if isinstance(kind, type)]
        assert errors == {kind.__name__ for kind in kinds if issubclass(kind, ortet.OrtetError)}
        assert errors >= {"NotFound", "Conflict", "Invalid", "Refused", "Corrupt", "Unsettled"}
        assert (ortet.Hub, ortet.Workspace) == (Hub, Workspace)
        with pytest.raises(AttributeError):
            ortet.nothing  # noqa: B018

    def test_a_commit_loads_no_merge_no_sweep_and_no_bundle(self, store: Path, work: Path) -> None:
        code = (
            "import sys, ortet\n"
            f"with ortet.open({str(store)!r}) as hub, hub.workspace({str(work)!r}) as ws:\n"
            "    ws.commit('x')\n"
            "print(*[name for name in sys.modules if name.startswith('ortet.')])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        loaded = set(done.stdout.split())
        assert "ortet.workspaces.workspace" in loaded
        heavy = ("session.merging", "session.care", "graph.merge", "store.sweep", "graph.bundle")
        assert loaded.isdisjoint(f"ortet.{name}" for name in heavy)


class TestReopen:
    def test_reopened_workspace_continues_from_its_last_commit(
        self, opened: Open, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        hub.close()
        (work / "b").touch()
        with opened() as later, later.workspace(work, engine="folder") as again:
            assert again.head == first
            assert [c.path for c in again.status().changes if c.kind == "added"] == ["b"]
            assert again.commit("second").parents == [first.oid]

    def test_private_files_come_back_from_the_branch_when_their_home_is_lost(
        self, opened: Open, hub: Hub, ws: Workspace
    ) -> None:
        (child,) = ws.fork()
        (child.path / "new").write_text("committed")
        child.commit("kept")
        home = child.path.parent
        hub.close()
        shutil.rmtree(home)
        with opened() as later, later.workspace(name="proj/1") as child:
            assert (child.path / "new").read_text() == "committed"
            assert child.status().clean

    def test_an_open_overlay_machine_is_a_conflict(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work, engine="overlay"), pytest.raises(Conflict, match="close it"):
            hub.workspace(work, engine="overlay")
        hub.workspace(work, engine="overlay").close()


def test_closing_leaves_no_descriptor_to_the_garbage_collector(store: Path) -> None:
    """Failed before: the locks of sweeps and the tail stayed open until it came by."""
    before = set(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        with ortet.open(store) as hub:
            with hub.session("s") as s:
                s.say("user", "hi")
                s.commit()
            hub.sweep()
        names = {f"/proc/self/fd/{fd}" for fd in set(os.listdir("/proc/self/fd")) - before}
        left = [os.readlink(name) for name in names if os.path.lexists(name)]
        assert [name for name in left if str(store) in name] == []
    finally:
        gc.enable()
