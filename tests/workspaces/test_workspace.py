"""The verbs of a workspace: commit, restore, rewind, fork, and what others do meanwhile."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import eventually, is_waited_for

from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused, Unsupported
from ortet.hub.hub import Hub
from ortet.ids import uuid7
from ortet.testing.clock import ManualClock
from ortet.workspaces.workspace import Workspace

Read = Callable[[Path], dict[str, str]]
Open = Callable[..., Hub]


def history(hub: Hub, name: str = "proj") -> list[str]:
    return [commit.message for commit in hub.log(name)]


class TestCommit:
    def test_nothing_changed_returns_the_head(self, ws: Workspace, hub: Hub) -> None:
        first = ws.commit("first")
        assert ws.commit("second") == first
        assert (ws.head, history(hub)) == (first, ["first"])

    def test_says_who_when_and_after_what(self, hub: Hub, ws: Workspace, work: Path) -> None:
        first = ws.commit("first")
        (work / "b").touch()
        second = ws.commit("second")
        assert (first.parents, second.parents) == ([], [first.oid])
        assert (second.author, second.message) == (hub.store.author, "second")
        assert second.state != first.state
        assert hub.refs.reflog("proj")[0].detail == "second"

    def test_the_same_files_have_the_same_state_anywhere(
        self, opened: Open, hub: Hub, ws: Workspace, tmp_path: Path
    ) -> None:
        first = ws.commit("here")
        hub.restore(first.oid, to=tmp_path / "copy")
        assert (
            hub.workspace(tmp_path / "copy", engine="folder").commit("there").state == first.state
        )
        other = opened(tmp_path / "other-store")
        again = other.workspace(tmp_path / "copy", engine="folder").commit("elsewhere")
        assert again.state == first.state
        assert again.oid != first.oid

    def test_a_message_that_is_not_text_loses_no_commit(self, ws: Workspace, hub: Hub) -> None:
        info = ws.commit("bytes \udcff and half \ud800 pairs, ä")
        assert info.message.startswith("bytes \ufffd")
        assert info.message.endswith("pairs, ä")
        assert hub.show("proj") == info

    def test_an_empty_directory_is_a_state(self, hub: Hub, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with hub.workspace(tmp_path / "empty", engine="folder") as ws:
            assert ws.commit("nothing").oid == ws.commit("still nothing").oid
            assert ws.status().clean

    def test_a_directory_that_is_gone_says_so_and_nothing_moves(
        self, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        work.rename(work.with_name("away"))
        with pytest.raises(OrtetError) as caught:
            ws.commit("second")
        assert str(work) in caught.value.message
        work.with_name("away").rename(work)
        assert ws.commit("third") == first

    @pytest.mark.parametrize(("watch", "tries"), [(True, 1), (True, 2), (False, 2)])
    def test_a_full_disk_refuses_and_the_next_commit_has_it_all(
        self, opened: Open, small_disk: Path, work: Path, read: Read, *, watch: bool, tries: int
    ) -> None:
        store = small_disk / "store"
        store.mkdir()
        (store / "config.toml").write_text("reserve = 0\n")
        with opened(store, watch=watch) as hub, hub.workspace(work, engine="folder") as ws:
            first = ws.commit("first")
            (small_disk / "ballast").write_bytes(bytes(2_500_000))
            for number in range(30):
                (work / f"big{number}").write_text(os.urandom(100_000).hex())
            for _ in range(tries):
                with pytest.raises(OrtetError, match="space"):
                    ws.commit("too much")
            assert ws.head == first
            (small_disk / "ballast").unlink()
            for number in range(20, 30):
                (work / f"big{number}").unlink()
            second = ws.commit("second")
            assert second.parents == [first.oid]
            hub.restore(second.oid, to=work.with_name("copy"))
            assert read(work.with_name("copy")) == read(work)
            hub.verify()

    def test_a_quota_refuses_loses_nothing_and_can_be_raised(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        store.mkdir()
        (store / "config.toml").write_text("quota = 1\n")
        with opened() as hub, hub.workspace(work, engine="folder") as ws:
            first = ws.commit("small")
            (work / "big").write_bytes(os.urandom(2 << 20))
            with pytest.raises(Refused, match="raise the quota"):
                ws.commit("too much")
            assert ws.head == first
            (work / "big").rename(work.with_name("big"))
            assert ws.commit("small again").message in ("small", "small again")
            work.with_name("big").rename(work / "big")
        (store / "config.toml").write_text("quota = 8\n")
        with opened() as hub, hub.workspace(work, engine="folder") as ws:
            big = ws.commit("big")
            hub.verify()
            assert hub.diff("proj~1", "proj")[0].path == "big"
            assert hub.show("proj") == big


class TestOthers:
    """Another hub, or another process, on the same branch."""

    def test_commit_after_another_moved_the_head_conflicts_once_then_succeeds(
        self, opened: Open, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        ws.commit("first")
        other = opened().workspace(work, engine="folder")
        (work / "b").write_text("by the other")
        theirs = other.commit("theirs")
        (work / "c").write_text("by us")
        before = read(work)
        with pytest.raises(Conflict, match="repeat the call") as caught:
            ws.commit("ours")
        assert caught.value.kind == "head_moved"
        assert caught.value.details["name"] == "proj"
        assert read(work) == before
        ours = ws.commit("ours")
        assert ours.parents == [theirs.oid]
        with pytest.raises(Conflict):
            other.commit("x")
        assert other.commit("nothing new") == ours
        assert history(hub) == ["ours", "theirs", "first"]

    def test_an_old_state_again_is_not_mistaken_for_the_head(
        self, opened: Open, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        other = opened().workspace(work, engine="folder")
        (work / "b").touch()
        theirs = other.commit("theirs")
        times = work.stat().st_mtime_ns
        (work / "b").unlink()
        hub.restore(first.oid, to=work.with_name("was"))
        was = work.with_name("was").stat().st_mtime_ns
        assert was != times
        os.utime(work, ns=(was, was))
        with pytest.raises(Conflict):
            ws.commit("back")
        assert ws.commit("back").parents == [theirs.oid]
        assert ws.head is not None
        assert ws.head.state == first.state

    def test_commit_of_a_state_another_committed_returns_that_commit(
        self, opened: Open, ws: Workspace, work: Path
    ) -> None:
        ws.commit("first")
        other = opened().workspace(work, engine="folder")
        (work / "b").touch()
        theirs = other.commit("theirs")
        with pytest.raises(Conflict):
            ws.commit("ours")
        assert ws.commit("ours") == theirs

    def test_a_restore_that_loses_the_race_changes_no_file(
        self, opened: Open, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        first = ws.commit("first")
        (work / "b").write_text("second")
        ws.commit("second")
        other = opened().workspace(work, engine="folder")
        (work / "c").write_text("third")
        other.commit("third")
        before = read(work)
        with pytest.raises(Conflict):
            ws.restore(first.oid)
        assert read(work) == before
        ws.restore(first.oid)
        assert "c" not in read(work)
        assert history(hub, "proj@{1}") == ["third", "second", "first"]

    def test_processes_that_commit_to_one_branch_lose_nothing(
        self, hub: Hub, ws: Workspace, work: Path, together: Callable[..., list[Any]]
    ) -> None:
        ws.commit("start")
        made = together(*[("commit", hub.root, work, name, 8) for name in ("x", "y", "z")])
        log = [commit.oid for commit in hub.log("proj")]
        assert {oid for oids in made for oid in oids} | {log[-1]} == set(log)
        assert all(len(commit.parents) == 1 for commit in hub.log("proj")[:-1])
        hub.verify()

    def test_a_renamed_or_dropped_workspace_says_what_to_do(
        self, opened: Open, ws: Workspace, work: Path
    ) -> None:
        from ortet.hub import branches

        ws.commit("first")
        branches.rename(opened().internals.session_manager, "proj", "renamed")
        (work / "b").touch()
        for _ in range(2):
            with pytest.raises(NotFound, match="open the directory again"):
                ws.commit("second")
        assert opened().workspace(work, engine="folder").commit("second").message == "second"
        assert ws.store.refs.get("proj") is None

    def test_opening_waits_for_a_restore_that_is_under_way(
        self, hub: Hub, ws: Workspace, work: Path, start: Callable[..., Any]
    ) -> None:
        ws.commit("first")
        ws.close()
        holder = start("hold", hub.root, work)
        holder.wait_for("ready")
        lock = hub.root / "local/machines" / ws.row.machine / "turn"
        found: list[Workspace] = []
        opener = threading.Thread(
            target=lambda: found.append(hub.workspace(work, engine="folder")), daemon=True
        )
        opener.start()

        def opener_waits() -> bool:
            assert opener.is_alive()
            return is_waited_for(lock)

        eventually(opener_waits)
        assert found == []
        holder.go()
        opener.join()
        assert holder.done > 0
        assert found[0].name == "proj"

    def test_restores_beside_processes_that_look_leave_whole_trees(
        self, hub: Hub, work: Path, together: Callable[..., list[Any]], read: Read
    ) -> None:
        with hub.workspace(work, engine="folder") as ws:
            states = {}
            for turn in range(2):
                for number in range(30):
                    (work / f"f{number}").write_text(f"{turn}")
                states[ws.commit(str(turn)).oid] = read(work)
        looked: list[Any]
        _, *looked = together(
            ("restore", hub.root, work, *states),
            ("look", hub.root, work, 7),
            ("look", hub.root, work, 7),
        )
        assert looked == [[True], [True]]
        assert read(work) in states.values()
        hub.verify()
        assert list(work.parent.glob(".ortet.stage*")) == []


class TestRestore:
    def test_moves_files_and_branch_and_the_reflog_leads_back(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        first, before = ws.commit("first"), read(work)
        (work / "a.txt").write_text("changed")
        (work / "src/main.py").unlink()
        second, after = ws.commit("second"), read(work)
        report = ws.restore(first.oid)
        assert (read(work), ws.head) == (before, first)
        assert report.written == 2
        ws.restore("HEAD@{1}")
        assert (read(work), ws.head) == (after, second)
        assert [op.verb for op in hub.refs.reflog("proj")][:2] == ["restore", "restore"]

    def test_uncommitted_work_is_kept_first(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        first, before = ws.commit("first"), read(work)
        (work / "new").write_text("not committed")
        (work / "a.txt").write_text("edited")
        ws.restore("HEAD")
        assert (read(work), ws.head) == (before, first)
        safety = hub.show("proj@{1}")
        assert (safety.message, safety.parents) == ("before restore", [first.oid])
        ws.restore(safety.oid)
        assert (work / "new").read_text() == "not committed"
        assert (work / "a.txt").read_text() == "edited"

    def test_restore_to_the_current_commit_does_nothing(self, hub: Hub, ws: Workspace) -> None:
        first = ws.commit("first")
        assert ws.restore(first.oid).written == 0
        assert len(hub.refs.reflog("proj")) == 1

    def test_restore_of_some_paths_keeps_the_head_and_other_files(
        self, ws: Workspace, work: Path, hub: Hub
    ) -> None:
        first = ws.commit("first")
        (work / "a.txt").write_text("changed")
        (work / "src/main.py").write_text("changed")
        (work / "src/new").write_text("new")
        second = ws.commit("second")
        (work / "b").write_text("uncommitted")
        assert ws.restore(first.oid, paths=["src"]).written == 1
        assert (work / "src/main.py").read_text() == "print('hi')\n"
        assert not (work / "src/new").exists()
        assert (work / "a.txt").read_text() == "changed"
        assert ws.head == second
        safety = hub.history.info(ws.resolve("HEAD@{1}"))
        assert (safety.message, safety.parents) == ("before restore", [second.oid])
        moves = len(hub.refs.reflog(ws.name))
        assert ws.restore(first.oid, paths=["src"]).written == 0
        assert (ws.head, len(hub.refs.reflog(ws.name))) == (second, moves)
        assert {change.path for change in ws.status().changes} == {"b", "src/main.py", "src/new"}
        assert {change.path for change in ws.diff("HEAD")} >= {"src/main.py", "src/new"}
        hub.verify()

    def test_restore_accepts_one_path_as_str_or_bytes(self, ws: Workspace, work: Path) -> None:
        """Not of the paths 'a', '.', 't', ..., of which '.' would be everything."""
        first = ws.commit("first")
        (work / "a.txt").write_text("changed")
        (work / "src/main.py").write_text("changed")
        ws.commit("second")
        ws.restore(first.oid, paths="a.txt")
        assert (work / "a.txt").read_text() != "changed"
        assert (work / "src/main.py").read_text() == "changed"
        ws.restore(first.oid, paths=b"src/main.py")
        assert (work / "src/main.py").read_text() != "changed"

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "src/../../x"])
    def test_of_paths_outside_is_invalid(self, ws: Workspace, path: str) -> None:
        first = ws.commit("first")
        with pytest.raises(Invalid, match="below the workspace"):
            ws.restore(first.oid, paths=[path])

    def test_restore_of_a_path_that_no_commit_has_is_not_found(self, ws: Workspace) -> None:
        first = ws.commit("first")
        with pytest.raises(NotFound, match="another path"):
            ws.restore(first.oid, paths=["nope"])

    def test_workspace_restore_accepts_only_files_as_part(self, ws: Workspace) -> None:
        first = ws.commit("first")
        ws.restore(first.oid, only={"files"})
        ws.restore(first.oid, only="files")
        for only in ({"mind"}, set[str]()):
            with pytest.raises(Invalid, match="only="):
                ws.restore(first.oid, only=only)

    def test_an_unknown_commit_touches_nothing(self, hub: Hub, ws: Workspace, work: Path) -> None:
        ws.commit("first")
        (work / "b").touch()
        for ref in ("nope", "f" * 64, "proj~5", "proj@{9}"):
            with pytest.raises(NotFound):
                ws.restore(ref)
        assert history(hub) == ["first"]


class TestRewind:
    def test_rewind_goes_back_n_commits_along_the_branch(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        commits = []
        for number in range(4):
            (work / "n").write_text(str(number))
            commits.append(ws.commit(str(number)))
        ws.rewind()
        assert ((work / "n").read_text(), ws.head) == ("2", commits[2])
        ws.rewind(2)
        assert ((work / "n").read_text(), ws.head) == ("0", commits[0])
        assert hub.show("proj@{1}") == commits[2]

    def test_rewind_keeps_uncommitted_work_and_counts_from_the_head(
        self, hub: Hub, ws: Workspace, work: Path, read: Read
    ) -> None:
        first, before = ws.commit("first"), read(work)
        (work / "b").write_text("2")
        second = ws.commit("second")
        (work / "c").write_text("uncommitted")
        ws.rewind()
        assert (ws.head, read(work)) == (first, before)
        safety = hub.show("proj@{1}")
        assert (safety.message, safety.parents) == ("before rewind", [second.oid])
        ws.restore(safety.oid)
        assert (work / "c").read_text() == "uncommitted"

    def test_beyond_the_first_commit_says_where_to_look(self, ws: Workspace, work: Path) -> None:
        first = ws.commit("first")
        (work / "b").touch()
        with pytest.raises(NotFound, match="ortet log"):
            ws.rewind(7)
        assert (ws.head, (work / "b").exists()) == (first, True)

    @pytest.mark.parametrize("n", [0, -1])
    def test_rewind_by_less_than_one_is_refused(self, ws: Workspace, n: int) -> None:
        ws.commit("first")
        with pytest.raises(Invalid, match="number from 1"):
            ws.rewind(n)

    def test_rewind_without_a_commit_is_refused(self, ws: Workspace) -> None:
        with pytest.raises(NotFound, match="commit first"):
            ws.rewind()


class TestLook:
    def test_status_and_diff_tell_what_a_commit_would_record(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        status = ws.status()
        assert (status.name, status.head, status.clean) == ("proj", None, False)
        first = ws.commit("first")
        assert ws.status().clean
        (work / "b").write_text("b")
        (work / "a.txt").unlink()
        status = ws.status()
        kinds = {(change.kind, change.path) for change in status.changes if change.path}
        assert {("added", "b"), ("removed", "a.txt")} <= kinds
        assert status.changes == ws.diff() == ws.diff(first.oid)
        assert (status.head, history(hub)) == (first.oid, ["first"])
        second = ws.commit("second")
        assert ws.diff(first.oid, second.oid) == hub.diff(first.oid, second.oid)
        assert ws.diff("HEAD~1", "HEAD") == ws.diff(first.oid)

    def test_diff_before_the_first_commit_is_refused(self, ws: Workspace) -> None:
        with pytest.raises(NotFound, match="commit"):
            ws.diff()

    def test_looking_stores_nothing_a_sweep_would_keep(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        ws.commit("first")
        (work / "b").write_bytes(os.urandom(50_000))
        ws.status()
        hub.sweep(min_garbage=0.0)
        assert [change.path for change in ws.diff() if change.kind == "added"] == ["b"]
        ws.commit("second")
        hub.verify()


@pytest.mark.parametrize("engine", ["folder", "overlay"])
class TestFork:
    def test_copies_are_private_branches_at_the_present_state(
        self, hub: Hub, work: Path, read: Read, engine: str
    ) -> None:
        with hub.workspace(work, engine=engine) as ws:
            (ws.path / "b").write_text("uncommitted")
            before = read(ws.path)
            children = ws.fork(3)
            assert [child.name for child in children] == [f"{ws.name}/{n}" for n in (1, 2, 3)]
            head = ws.head
            assert head is not None
            assert head.message == "fork point"
            for child in children:
                assert (child.head, read(child.path), child.engine) == (head, before, engine)
                assert child.status().clean
            children[0].run("echo changed > a.txt; rm b")
            children[0].commit("mine")
            assert read(ws.path) == read(children[1].path) == before
            assert ws.head == head

    def test_fork_of_a_fork_starts_with_its_uncommitted_files(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        with hub.workspace(work, engine=engine) as ws:
            (child,) = ws.fork()
            (child.path / "c").write_text("child")
            one, two = child.fork(2)
            assert (one.name, two.name) == (f"{ws.name}/1/1", f"{ws.name}/1/2")
            assert (two.path / "c").read_text() == "child"
            assert one.head == child.head

    @pytest.mark.parametrize("n", [0, -1])
    def test_fork_of_less_than_one_is_refused_and_commits_nothing(
        self, hub: Hub, work: Path, engine: str, n: int
    ) -> None:
        with hub.workspace(work, engine=engine) as ws:
            with pytest.raises(Invalid, match="number from 1"):
                ws.fork(n)
            assert ws.head is None

    def test_goes_on_where_it_was_after_closing(
        self, hub: Hub, opened: Open, work: Path, engine: str
    ) -> None:
        ws = hub.workspace(work, engine=engine)
        (child,) = ws.fork()
        child.run("echo kept > new")
        name = child.name
        hub.close()
        with opened() as again, again.workspace(name=name) as child:
            assert (child.path / "new").read_text() == "kept\n"
            assert [c.path for c in child.status().changes if c.kind == "added"] == ["new"]


class TestForkFails:
    def test_a_disk_that_gets_full_leaves_no_copy_and_the_parent_whole(
        self, opened: Open, small_disk: Path, work: Path, read: Read
    ) -> None:
        store = small_disk / "store"
        store.mkdir()
        (store / "config.toml").write_text("reserve = 0\n")
        (work / "a.txt").write_text(os.urandom(400_000).hex())
        with opened(store) as hub:
            ws = hub.workspace(work, engine="folder")
            before = read(work)
            with pytest.raises(OrtetError) as caught:
                ws.fork(6)
            assert caught.value.kind == "disk_full"
            assert os.listdir(store / "local/machines") == [ws.row.machine]
            assert [head.name for head in hub.refs.branches()] == ["proj"]
            assert [row.name for row in hub.workspaces.table.all()] == ["proj"]
            assert (read(work), ws.status().clean) == (before, True)
            assert [child.name for child in ws.fork(1)] == ["proj/1"]

    def test_a_home_that_cannot_be_made_leaves_the_others_unmade(
        self, opened: Open, work: Path
    ) -> None:
        clock = ManualClock()
        numbers = (number.to_bytes(10, "big") for number in itertools.count())
        hub = opened(clock=clock, random=lambda _: next(numbers))
        ws = hub.workspace(work, engine="folder")
        ws.commit("first")
        taken = int.from_bytes(next(numbers), "big") + 3  # the third home's id
        blocked = hub.root / "local/machines" / uuid7(clock, lambda n: taken.to_bytes(n, "big"))
        blocked.write_text("in the way")
        with pytest.raises(OrtetError, match=blocked.name):
            ws.fork(4)
        blocked.unlink(missing_ok=True)
        assert os.listdir(hub.root / "local/machines") == [ws.row.machine]
        assert [head.name for head in hub.refs.branches()] == ["proj"]
        assert len(ws.fork(2)) == 2

    def test_processes_that_fork_at_once_get_names_of_their_own(
        self, hub: Hub, ws: Workspace, work: Path, together: Callable[..., list[Any]]
    ) -> None:
        ws.commit("start")
        found = together(*[("fork", hub.root, work, 3)] * 3)
        names = [name for names in found for name in names]
        assert sorted(names) == [f"proj/{number}" for number in range(1, 10)]
        for name in names:
            with hub.workspace(name=name) as child:
                assert (child.path / "mine").read_text() == name
        hub.verify()


class TestEngines:
    def test_a_named_engine_is_for_the_forks_too_also_later(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work) as ws:
            assert (ws.engine, ws.path) == ("folder", work)
            assert [child.engine for child in ws.fork()] == ["overlay"]
        with hub.workspace(work, engine="folder") as ws:
            assert [child.engine for child in ws.fork()] == ["folder"]

    def test_an_unknown_engine_is_refused_and_not_remembered(self, hub: Hub, work: Path) -> None:
        with pytest.raises(Invalid, match="give auto, folder"):
            hub.workspace(work, engine="magic")
        assert list(hub.workspaces.table.all()) == []
        assert hub.workspace(work, engine="folder").commit("works").message == "works"
        with pytest.raises(Invalid, match="give auto, folder"):
            hub.workspace(work, engine="magic")

    def test_without_criu_its_engine_is_refused_and_not_remembered(
        self, hub: Hub, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ortet.machines.live.engine.find_criu", lambda _: "")
        with pytest.raises(Unsupported, match="engine='overlay'") as caught:
            hub.workspace(work, engine="criu")
        assert caught.value.kind == "engine_unusable"
        assert list(hub.workspaces.table.all()) == []

    @pytest.mark.parametrize("engine", ["overlay", "criu"])
    def test_engines_that_keep_files_private_cannot_be_in_place(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        with pytest.raises(Invalid, match="leave files= out"):
            hub.workspace(work, engine=engine, files="inplace")

    def test_workspace_with_an_unknown_files_mode_is_refused(self, hub: Hub, work: Path) -> None:
        with pytest.raises(Invalid, match="'inplace' or 'private'"):
            hub.workspace(work, files="both")  # type: ignore[arg-type]

    @pytest.mark.parametrize("engine", ["folder", "overlay"])
    def test_private_files_leave_the_directory_alone(
        self, hub: Hub, work: Path, read: Read, engine: str
    ) -> None:
        before = read(work)
        with hub.workspace(work, engine=engine, files="private") as ws:
            assert read(ws.path) == before
            ws.run("echo private > a.txt; echo new > b")
            ws.commit("private")
            assert read(work) == before
        with hub.workspace(work, engine=engine, files="private") as again:
            assert again.name == ws.name
            assert (again.path / "b").read_text() == "new\n"
        assert hub.workspace(work, engine="folder").name != ws.name


class TestRun:
    @pytest.mark.parametrize("engine", ["folder", "overlay"])
    def test_run_passes_a_str_to_sh_and_executes_a_list(
        self, hub: Hub, work: Path, engine: str
    ) -> None:
        with hub.workspace(work, engine=engine) as ws:
            result = ws.run("pwd; echo $X >&2; cat; exit 3", env={"X": "x"}, stdin="in")
            assert (result.exit_code, result.stderr) == (3, "x\n")
            assert result.stdout == f"{work}\nin"
            assert ws.run(["echo", "$HOME"]).stdout == "$HOME\n"
            assert ws.run("cat", stdin="\udcff").stdout == "\ufffd"
            assert ws.run("pwd", cwd="src").stdout == f"{work}/src\n"


class TestClose:
    def test_closing_a_workspace_twice_is_allowed(self, ws: Workspace) -> None:
        ws.commit("first")
        ws.close()
        ws.close()

    def test_every_verb_of_a_closed_workspace_says_to_open_it_again(
        self, hub: Hub, ws: Workspace
    ) -> None:
        first = ws.commit("first")
        (child,) = ws.fork()
        ws.close()
        verbs: list[Callable[[], object]] = [
            ws.commit,
            ws.status,
            ws.diff,
            ws.rewind,
            ws.fork,
            lambda: ws.run("true"),
            lambda: ws.restore(first.oid),
            lambda: ws.merge("proj/1"),
            lambda: child.merge(ws),
            ws.files.current_image,
        ]
        for verb in verbs:
            with pytest.raises(Invalid, match="open it again") as caught:
                verb()
            assert caught.value.kind == "closed"
        child.close()
        with pytest.raises(Invalid, match="open it again"):
            child.land()
        assert ws.name == "proj"
        assert hub.workspace(name="proj").head == first

    def test_leaving_the_block_closes_the_workspace(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work, engine="folder") as ws:
            pass
        with pytest.raises(Invalid):
            ws.commit()


class TestSwept:
    def test_restore_and_merge_of_a_swept_commit_are_not_found(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        (work / "b").write_bytes(os.urandom(300_000))
        second = ws.commit("second")
        ws.restore(first.oid)
        assert hub.sweep(expire_ns=0, min_garbage=0.0).removed > 0
        for verb in (ws.restore, ws.merge):
            with pytest.raises(NotFound):
                verb(second.oid)
        (work / "b").write_text("again")
        ws.commit("third")
        hub.verify()


class TestIgnoredByTheTarget:
    """What the target's own `.ortetignore` leaves out stays on disk when we go there."""

    @pytest.fixture(params=["folder", "overlay"])
    def there(self, request: pytest.FixtureRequest, hub: Hub, work: Path) -> Workspace:
        return hub.workspace(work, engine=request.param)

    def test_undone_rewind_keeps_files_that_the_target_ignores(self, there: Workspace) -> None:
        there.commit("plain")
        build = there.path / "build"
        build.mkdir()
        (build / "o").write_text("built")
        (there.path / "src/x.o").write_text("built")
        (there.path / "src/old").mkdir()
        (there.path / "src/old/y.o").write_text("built")
        (there.path / ".ortetignore").write_text("build/\n*.o\n")
        ignoring = there.commit("ignore")
        there.rewind()
        there.restore("HEAD@{1}")
        assert (there.path / "build/o").read_text() == "built"
        assert (there.path / "src/x.o").read_text() == "built"
        assert (there.path / "src/old/y.o").read_text() == "built"
        assert there.commit("again").oid == ignoring.oid

    def test_restore_of_a_fork_keeps_files_that_the_target_ignores(self, there: Workspace) -> None:
        (there.path / ".ortetignore").write_text("build/\n")
        ignoring = there.commit("ignore")
        (there.path / ".ortetignore").unlink()
        (there.path / "build").mkdir()
        for number in range(300):
            (there.path / f"build/{number}").write_text(str(number))
        (copy,) = there.fork()
        copy.restore(ignoring)
        assert len(list((copy.path / "build").iterdir())) == 300
        assert copy.status().clean

    def test_restore_keeps_files_over_the_size_limit_of_the_target(self, there: Workspace) -> None:
        (there.path / ".ortetignore").write_text("size > 1KB *.bin\n")
        small = there.commit("small files only")
        (there.path / ".ortetignore").unlink()
        (there.path / "big.bin").write_bytes(bytes(5000))
        (there.path / "little.bin").write_bytes(bytes(50))
        there.restore(small)
        assert (there.path / "big.bin").exists()
        assert not (there.path / "little.bin").exists()


class TestWhatIsAskedFor:
    """Commits as they were returned are good names; what is no name is said to be none."""

    def test_verbs_accept_a_commit_object_as_reference(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        (work / "a.txt").write_text("two")
        second = ws.commit("second")
        ws.restore(first)
        assert ws.head == first
        assert hub.show(second) == second
        assert hub.log(second, limit=1) == [second]
        assert [change.path for change in hub.diff(first, second)] == ["a.txt"]
        assert [change.path for change in ws.diff(second)] == ["a.txt"]
        hub.restore(first, to=work.parent / "out")
        hub.export(second, work.parent / "x.bundle")

    def test_workspace_log_lists_its_own_branch_or_the_given_one(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        first = ws.commit("first")
        ws.fork()
        (work / "b").touch()
        second = ws.commit("second")
        assert ws.log() == [second, first]
        assert ws.log(limit=1) == [second]
        assert ws.log("proj/1") == [first]

    @pytest.mark.parametrize("wrong", [None, 5, 1.5, "", [], b"HEAD"])
    def test_value_that_is_no_commit_reference_is_refused(
        self, hub: Hub, ws: Workspace, tmp_path: Path, wrong: Any
    ) -> None:
        ws.commit("first")
        for call in (
            lambda: ws.restore(wrong),
            lambda: ws.diff(wrong),
            lambda: ws.log(wrong),
            lambda: hub.log(wrong),
            lambda: hub.show(wrong),
            lambda: hub.diff("HEAD", wrong),
            lambda: hub.restore(wrong, to=tmp_path / "out"),
            lambda: hub.export([wrong], tmp_path / "out"),
        ):
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.kind == "bad_ref"
        assert hub.log() == ws.log()

    @pytest.mark.parametrize("wrong", [None, "x", 1.5, 0, [1]])
    def test_fork_and_rewind_with_a_bad_number_are_refused(self, ws: Workspace, wrong: Any) -> None:
        ws.commit("first")
        for call in (ws.fork, ws.rewind):
            with pytest.raises(Invalid):
                call(wrong)

    @pytest.mark.parametrize("wrong", [None, 5, b"true", ["true", 5], []])
    def test_run_with_a_value_that_is_no_command_is_refused(
        self, ws: Workspace, wrong: Any
    ) -> None:
        with pytest.raises(Invalid, match="give a string, or a list of strings"):
            ws.run(wrong)

    def test_commit_with_a_message_that_is_not_text_is_refused(self, ws: Workspace) -> None:
        with pytest.raises(Invalid, match="give text"):
            ws.commit(None)  # type: ignore[arg-type]

    def test_restore_of_parts_a_workspace_does_not_have_is_refused(self, ws: Workspace) -> None:
        head = ws.commit("first")
        parts: tuple[str | set[str], ...] = ("mind", {"files", "mind"}, set())
        for only in parts:
            with pytest.raises(Invalid, match="holds files and processes only"):
                ws.restore(head, only=only)

    def test_diff_log_and_restore_before_the_first_commit_are_not_found(
        self, hub: Hub, ws: Workspace
    ) -> None:
        for call in (lambda: ws.diff("HEAD"), ws.log, lambda: ws.restore("HEAD~1")):
            with pytest.raises(NotFound, match="no commit yet: run `ortet commit`"):
                call()
        with pytest.raises(NotFound, match="commit"):
            hub.log()

    def test_repr_of_hub_and_workspace_shows_name_engine_and_path(
        self, hub: Hub, ws: Workspace, work: Path
    ) -> None:
        assert repr(hub) == f"<Hub {hub.root}>"
        assert repr(ws) == f"<Workspace proj (folder) {work}>"
        ws.close()
        assert repr(ws) == f"<Workspace proj (closed) {work}>"
