"""Which workspace is where: names, places, and processes that register at the same time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.refs import is_ref_name
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.workspaces.table import WorkspaceRow


def row_at(hub: Hub, path: Path, name: str = "proj", machine: str = "m") -> WorkspaceRow:
    draft = hub.workspaces.table.draft(path, "inplace", "folder")
    return replace(draft, name=name, machine=machine)


class TestNames:
    @pytest.mark.parametrize(
        ("directory", "name"),
        [
            ("proj", "proj"),
            ("my project (2)", "my-project-2"),
            ("..hidden", "hidden"),
            ("a..b", "a.b"),
            ("HEAD", "HEAD-workspace"),
            ("ünïcode", "n-code"),
            ("日本", "workspace"),
            (os.fsdecode(b"\xff\xfe"), "workspace"),
            ("--", "workspace"),
            ("x.lock", "x-lock"),
            ("d" * 64, "d" * 64 + "-workspace"),
            ("n" * 250, "n" * 100),
        ],
    )
    def test_every_directory_gives_a_name_that_can_be_used(
        self, hub: Hub, tmp_path: Path, directory: str, name: str
    ) -> None:
        (tmp_path / directory).mkdir()
        with hub.workspace(tmp_path / directory, engine="folder") as ws:
            assert ws.name == name
            assert is_ref_name(ws.name)
            oid = ws.commit("first").oid
            assert ws.diff("HEAD") == []
            assert hub.show(ws.name).oid == oid

    def test_a_taken_name_gets_a_number(self, hub: Hub, tmp_path: Path) -> None:
        names = []
        for place in ("x/proj", "y/proj", "z/proj"):
            (tmp_path / place).mkdir(parents=True)
            names.append(hub.workspace(tmp_path / place, engine="folder").name)
        assert names == ["proj", "proj-2", "proj-3"]

    def test_a_branch_without_a_workspace_takes_its_name_too(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work, engine="folder") as ws:
            ws.commit("kept")
        hub.drop("proj")
        assert hub.workspace(work, engine="folder").name == "proj-2"

    def test_a_chosen_name_goes_on_with_a_branch(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work, engine="folder") as ws:
            oid = ws.commit("kept").oid
        hub.drop("proj")
        again = hub.workspace(work, name="proj", engine="folder")
        assert again.commit("nothing new").oid == oid

    def test_a_chosen_name_of_another_directory_is_a_conflict(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        hub.workspace(work, engine="folder")
        (tmp_path / "other").mkdir()
        with pytest.raises(Conflict, match="choose another name") as caught:
            hub.workspace(tmp_path / "other", name="proj", engine="folder")
        assert caught.value.kind == "name_taken"
        assert hub.workspace(tmp_path / "other", engine="folder").name == "other"

    def test_another_name_for_a_known_directory_is_a_conflict(self, hub: Hub, work: Path) -> None:
        hub.workspace(work, engine="folder")
        with pytest.raises(Conflict, match="leave the name out"):
            hub.workspace(work, name="better", engine="folder")

    @pytest.mark.parametrize("name", ["", "a b", "x..y", "-x", "HEAD", "a\0b", "n" * 300])
    def test_a_bad_name_is_refused_and_nothing_is_kept(
        self, hub: Hub, work: Path, name: str
    ) -> None:
        with pytest.raises(Invalid):
            hub.workspace(work, name=name, engine="folder")
        assert list(hub.workspaces.table.all()) == []

    def test_an_unknown_name_says_where_to_look(self, hub: Hub) -> None:
        with pytest.raises(NotFound, match="ortet branch"):
            hub.workspace(name="nobody")


class TestForkNames:
    def test_fork_numbering_ignores_branches_that_are_not_plain_numbers(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work, engine="folder")
        point = from_hex(ws.commit("first").oid)
        for tail in ("²", "x", "7/1", "0005", "9" * 50):
            hub.refs.create(f"proj/{tail}", point)
        assert [child.name for child in ws.fork(2)] == ["proj/6", "proj/7"]

    def test_a_workspace_without_a_commit_keeps_its_name(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "mine").mkdir()
        mine = hub.workspace(tmp_path / "mine", name="proj/1", engine="folder")
        (child,) = hub.workspace(work, engine="folder").fork(1)
        assert child.name == "proj/2"
        assert hub.workspaces.table.need("proj/1") == mine.row

    def test_a_name_that_grew_too_long_is_refused_and_nothing_is_left(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work, name="n" * 199, engine="folder")
        with pytest.raises(Invalid, match="200 bytes"):
            ws.fork(1)
        assert [row.name for row in hub.workspaces.table.all()] == [ws.name]
        assert os.listdir(hub.root / "local/machines") == [ws.row.machine]


class TestPlaces:
    def test_names_that_only_look_alike_are_different_places(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        raw, text = tmp_path / os.fsdecode(b"x\xff"), tmp_path / "x\\xff"
        raw.mkdir()
        text.mkdir()
        (raw / "in-raw").touch()
        one, two = (hub.workspace(place, engine="folder") for place in (raw, text))
        assert one.name != two.name
        assert (one.path, two.path) == (raw, text)
        assert hub.workspace(raw, engine="folder").name == one.name

    def test_a_symlink_leads_to_the_same_workspace(self, hub: Hub, work: Path) -> None:
        link = work.with_name("link")
        link.symlink_to(work)
        ws = hub.workspace(work, engine="folder")
        assert hub.workspace(link, engine="folder").name == ws.name

    def test_a_relative_path_is_the_same_directory(
        self, hub: Hub, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ws = hub.workspace(work, engine="folder")
        monkeypatch.chdir(work / "src")
        assert hub.workspace("..", engine="folder").name == ws.name
        assert hub.workspace("../../proj/", engine="folder").name == ws.name

    def test_another_host_has_places_of_its_own(self, hub: Hub, work: Path) -> None:
        row = row_at(hub, work)
        hub.workspaces.table.add(replace(row, host="elsewhere"))
        assert hub.workspaces.table.find_at(work, "inplace", "folder") is None
        with pytest.raises(Conflict):
            hub.workspaces.table.add(row)
        assert hub.workspaces.table.add(replace(row, name="here")).name == "here"

    def test_a_long_path_has_a_place(self, hub: Hub, tmp_path: Path) -> None:
        deep = tmp_path
        while len(str(deep)) < 3500:
            deep = deep / ("d" * 200)
        deep.mkdir(parents=True)
        (deep / "f").touch()
        ws = hub.workspace(deep, engine="folder")
        assert hub.workspace(deep, engine="folder").commit("x").oid == ws.head.oid  # type: ignore[union-attr]


class TestAdd:
    """Killed, or raced, between its two rows."""

    def test_workspace_whose_place_row_is_missing_is_registered_again(
        self, hub: Hub, work: Path
    ) -> None:
        row = row_at(hub, work)
        hub.workspaces.table.add(row)
        hub.catalog.drop_row("place", row.location_key)  # what a kill after the first row leaves
        assert hub.workspace(work, engine="folder").row.machine == row.machine
        assert [found.name for found in hub.workspaces.table.all()] == ["proj"]

    def test_a_place_whose_workspace_is_gone_is_taken_over(self, hub: Hub, work: Path) -> None:
        row = row_at(hub, work)
        hub.catalog.put_row("place", row.location_key, b"gone")
        assert hub.workspace(work, engine="folder").name == "proj"
        assert hub.workspace(work, engine="folder").name == "proj"

    def test_two_directories_never_share_a_name(self, hub: Hub, work: Path, tmp_path: Path) -> None:
        hub.workspaces.table.add(row_at(hub, work))
        with pytest.raises(Conflict, match="choose another name"):
            hub.workspaces.table.add(row_at(hub, tmp_path / "other"))
        assert hub.workspaces.table.find_at(tmp_path / "other", "inplace", "folder") is None

    def test_second_registration_of_a_directory_returns_the_first_workspace(
        self, hub: Hub, work: Path
    ) -> None:
        first = hub.workspaces.table.add(row_at(hub, work, "first"))
        assert hub.workspaces.table.add(row_at(hub, work, "second", "n")) == first
        assert [row.name for row in hub.workspaces.table.all()] == ["first"]

    def test_one_directory_opened_by_many_processes_is_one_workspace(
        self, hub: Hub, work: Path, together: Callable[..., list[Any]]
    ) -> None:
        found = together(*[("enter", hub.root, work)] * 4)
        assert {one["name"] for one in found} == {"proj"}
        assert [row.name for row in hub.workspaces.table.all()] == ["proj"]
        assert {one["oid"] for one in found} == {hub.show("proj").oid}

    def test_directories_of_one_name_opened_at_once_stay_apart(
        self, hub: Hub, tmp_path: Path, together: Callable[..., list[Any]]
    ) -> None:
        places = [tmp_path / str(number) / "same" for number in range(4)]
        for place in places:
            place.mkdir(parents=True)
            (place / place.parent.name).touch()
        found = together(*[("enter", hub.root, place) for place in places])
        assert len({one["name"] for one in found}) == 4
        assert [Path(one["path"]) for one in found] == places
        for place, one in zip(places, found, strict=True):
            assert hub.workspace(place, engine="folder").name == one["name"]


class TestMove:
    def test_a_moved_directory_keeps_history_and_forks(self, hub: Hub, work: Path) -> None:
        with hub.workspace(work, engine="folder") as ws:
            first = ws.commit("first").oid
            (child,) = ws.fork(1)
        (child.path / "from-fork").write_text("landed")
        child.close()
        moved = work.with_name("moved")
        work.rename(moved)
        assert hub.workspaces.reopen("proj", moved).commit("same").oid == first
        hub.workspace(name="proj/1").land()
        assert (moved / "from-fork").read_text() == "landed"
        assert not work.exists()

    def test_a_copy_gets_its_own_history(self, hub: Hub, work: Path) -> None:
        hub.workspace(work, engine="folder").commit("first")
        copy = work.with_name("copy")
        shutil.copytree(work, copy)
        other = hub.workspaces.reopen("proj", copy)
        assert (other.name, other.head) == ("copy", None)
        assert hub.workspaces.reopen("proj", work).name == "proj"

    def test_a_pointer_without_a_name_finds_the_directory(self, hub: Hub, work: Path) -> None:
        assert hub.workspaces.locate("", work) is None
        assert hub.workspaces.reopen("", work).name == "proj"
        assert hub.workspaces.reopen("unknown", work).name == "proj"


class TestDrop:
    def test_drop_of_a_fork_removes_its_files_and_keeps_its_branch(
        self, hub: Hub, work: Path
    ) -> None:
        (child,) = hub.workspace(work, engine="folder").fork(1)
        head = child.commit("x").oid
        home = child.path.parent
        hub.drop(child.name)
        assert not home.exists()
        assert hub.show("proj/1").oid == head
        with pytest.raises(Invalid, match="open it again"):
            child.commit("y")
        with pytest.raises(NotFound):
            hub.workspace(name="proj/1")

    @pytest.mark.parametrize("engine", ["folder", "overlay"])
    @pytest.mark.parametrize("is_open", [True, False])
    def test_what_was_not_committed_is_recorded_first(
        self, hub: Hub, work: Path, engine: str, is_open: bool
    ) -> None:
        ws = hub.workspace(work)
        ws.files.branch.row = replace(ws.row, forks=engine)
        keep, lose, clean = ws.fork(3)
        head = clean.head
        for child in (keep, lose):
            (child.path / "late").write_text("not committed")
        if not is_open:
            for child in (keep, lose, clean):
                child.close()
        hub.drop(keep.name)
        hub.drop(lose.name, discard=True)
        hub.drop(clean.name)
        assert hub.show(keep.name).message == "before drop"
        assert "late" in {change.path for change in hub.diff("proj", keep.name)}
        assert hub.show(lose.name) == hub.show(clean.name) == head

    def test_a_directory_whose_pointer_names_it_goes_on_with_its_branch(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.workspace(work) as ws:
            head = ws.commit("x")
        hub.drop("proj")
        with hub.workspaces.reopen("proj", work) as again:
            assert (again.name, again.head) == ("proj", head)

    def test_a_workspace_in_place_leaves_only_its_directory(
        self, hub: Hub, work: Path, read: Callable[[Path], dict[str, str]]
    ) -> None:
        before = read(work)
        ws = hub.workspace(work, engine="folder")
        ws.commit("x")
        hub.drop("proj")
        assert read(work) == before
        assert os.listdir(hub.root / "local/machines") == []
        assert hub.workspaces.table.find_at(work, "inplace", "folder") is None

    def test_drop_of_an_unknown_workspace_is_not_found(self, hub: Hub) -> None:
        with pytest.raises(NotFound, match="ortet branch"):
            hub.drop("nobody")

    @pytest.mark.parametrize("engine", ["folder", "overlay"])
    def test_drop_of_a_workspace_open_in_another_process_is_refused(
        self, hub: Hub, opened: Callable[..., Hub], work: Path, engine: str
    ) -> None:
        ws = hub.workspace(work, engine=engine)
        (child,) = ws.fork()
        (child.path / "mine").write_text("in use")
        other = opened()
        for name in (ws.name, child.name):
            with pytest.raises(Conflict, match="close it there first"):
                other.drop(name)
        assert (child.path / "mine").read_text() == "in use"
        assert child.commit("goes on").parents
        hub.close()
        other.drop(child.name)
        assert [row.name for row in other.workspaces.table.all()] == [ws.name]

    def test_opening_what_was_just_dropped_makes_nothing(self, hub: Hub, work: Path) -> None:
        (child,) = hub.workspace(work, engine="folder").fork()
        child.close()
        hub.drop("proj/1")
        with pytest.raises(NotFound, match="ortet branch"):
            hub.workspaces.open_row(child.row)  # as one who read the row before
        assert not child.path.parent.exists()

    def test_a_missing_object_does_not_cost_uncommitted_files(
        self, hub: Hub, opened: Callable[..., Hub], work: Path
    ) -> None:
        (child,) = hub.workspace(work, engine="folder").fork()
        (child.path / "mine").write_text("uncommitted")
        child.commit("to be lost")
        (child.path / "mine").write_text("newer")
        hub.close()
        for tail in (hub.root / "local/tails").iterdir():
            tail.write_bytes(b"")
        with opened() as again, pytest.raises(NotFound):
            again.workspace(name="proj/1")
        assert (child.path / "mine").read_text() == "newer"
