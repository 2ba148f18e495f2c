"""A live directory becomes equal to an image, or stays exactly as it was."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortet.codec import encode
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, OrtetError, Unavailable
from ortet.graph.records import Entry, Image, Page
from ortet.machine.build import build as build_
from ortet.machine.materialise import materialise
from ortet.machine.rules import Rules
from ortet.machine.steps import act as act_
from ortet.machine.thaw import recover, thaw
from ortet.store import faults
from ortet.store.abc import Kind
from ortet.store.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


class Bench:
    """A workspace with a memory: freeze it, change it, thaw it."""

    def __init__(self, shop: Any, root: Path, stage: Path) -> None:
        self.shop = shop
        self.root = root
        self.stage = stage
        self.index = shop.index()
        self.rules = Rules()

    def freeze(self) -> Image:
        image: Image = self.shop.freeze(self.root, self.index, self.rules)
        return image

    def thaw(self, target: Image, *, current: Image | None = None, **more: Any) -> Any:
        return thaw(
            self.shop.objects,
            self.shop.trees,
            self.root,
            current or self.freeze(),
            target,
            index=self.index,
            stage=self.stage,
            rules=self.rules,
            **more,
        )

    def check(self, target: Image) -> None:
        """The files are the target's, whoever looks, and nothing of ours is left."""
        assert self.freeze() == target
        assert self.shop.freeze(self.root, None, self.rules) == target
        self.check_clean()

    def check_clean(self) -> None:
        assert not self.stage.exists() or os.listdir(self.stage) == []
        for place in (self.root, self.root.parent):
            assert not [n for n in os.listdir(place) if n.startswith(".ortet.stage.")]


@pytest.fixture
def bench(shop: Any, place: Path) -> Bench:
    (place / "room" / "root").mkdir(parents=True)
    return Bench(shop, place / "room" / "root", place / "home" / "stage")


def disturb(root: Path) -> None:
    """Change, remove, add and replace something of everything in the torture tree."""
    (root / "plain").write_text("changed")
    (root / "empty").unlink()
    (root / "big").chmod(0o600)
    os.utime(root / "exact", ns=(1, 2))
    os.setxattr(root / "exact", "user.more", b"1")
    os.removexattr(root / "attributes", "user.raw")
    (root / "cap").write_text("other")
    os.chown(root / "acl", 7, 7)
    (root / "sparse").write_bytes(b"dense")
    (root / "new").write_text("new")
    (root / "newdir" / "deep").mkdir(parents=True)
    (root / "newdir" / "deep" / "f").write_text("f")
    (root / "fifo").unlink()
    (root / "fifo").mkdir()
    (root / "fifo" / "was-a-fifo").write_text("")
    shutil.rmtree(root / "sticky")
    (root / "sticky").write_text("was a directory")
    shutil.rmtree(root / "closed")
    (root / "closed").symlink_to("a")
    (root / "link-loop").unlink()
    (root / "link-dangling").unlink()
    (root / "link-dangling").mkdir()
    (root / "a" / "three").unlink()  # leaves its group
    (root / "a" / "three").write_text("linked")
    os.link(root / "plain", root / "joined")  # a new group
    (root / "null").unlink()
    os.mknod(root / "null", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    (root / "setgid" / "inner").unlink()
    (root / "hollow").chmod(0o700)
    os.utime(root / "hollow", ns=(5, 5))
    subprocess.run(["rm", "-rf", str(root / ("d" * 240))], check=True)
    root.chmod(0o711)


def test_back_and_forth_between_very_different_trees(
    bench: Bench, torture: Torture, see: Eye
) -> None:
    torture(bench.root)
    before, first = see(bench.root), bench.freeze()
    disturb(bench.root)
    after, second = see(bench.root), bench.freeze()
    assert first != second
    report = bench.thaw(first)
    assert report.losses == []
    assert report.written > 20
    assert report.removed >= 5
    assert see(bench.root) == before
    bench.check(first)
    assert bench.thaw(second).losses == []
    assert see(bench.root) == after
    bench.check(second)


def test_only_what_differs_is_touched(bench: Bench) -> None:
    for name in ("same", "content", "mode", "gone", "d/same", "d/content", "other/same"):
        (bench.root / name).parent.mkdir(exist_ok=True)
        (bench.root / name).write_text(name)
    first = bench.freeze()
    (bench.root / "content").write_text("more")
    (bench.root / "d" / "content").write_text("more")
    (bench.root / "mode").chmod(0o600)
    (bench.root / "gone").unlink()
    bench.freeze()

    def looks() -> dict[str, os.stat_result]:
        names = ("same", "d/same", "other/same", "other")
        return {name: os.stat(bench.root / name) for name in names}

    before, inode = looks(), os.stat(bench.root / "mode").st_ino
    report = bench.thaw(first)
    assert looks() == before  # ctime included
    assert os.stat(bench.root / "mode").st_ino == inode
    assert (report.written, report.removed) == (4, 0)
    bench.check(first)
    assert bench.thaw(first).written == 0


KINDS = {
    "nothing": "true",
    "file": "printf file > it",
    "other file": "printf other > it; chmod 755 it",
    "link": "ln -s target it",
    "fifo": "mkfifo it",
    "directory": "mkdir it",
    "full directory": "mkdir it; printf x > it/x",
}


def shell(script: str, cwd: Path) -> None:
    subprocess.run(["sh", "-ec", script], cwd=cwd, check=True)


@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", KINDS)
def test_anything_can_become_anything(bench: Bench, see: Eye, old: str, new: str) -> None:
    above = bench.root / "d"
    above.mkdir()
    shell(KINDS[new], above)
    wanted, target = see(bench.root), bench.freeze()
    shell(f"rm -rf it; {KINDS[old]}", above)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([], ["ab"]),
        (["ab"], []),
        (["ab"], ["abc"]),
        (["abc"], ["ab"]),
        (["ab", "cd"], ["ac", "bd"]),
        (["abcd"], ["ab", "cd"]),
        (["ab"], ["ab"]),
    ],
)
def test_hardlinks_are_regrouped(bench: Bench, see: Eye, old: list[str], new: list[str]) -> None:
    def lay(groups: list[str]) -> None:
        shutil.rmtree(bench.root)
        for name in "abcd":
            (bench.root / name).mkdir(parents=True)
            (bench.root / name / "f").write_text("same in all")
            os.utime(bench.root / name / "f", ns=(0, 0))
        for group in groups:
            for name in group[1:]:
                (bench.root / name / "f").unlink()
                os.link(bench.root / group[0] / "f", bench.root / name / "f")
        for path in (*(bench.root / name for name in "abcd"), bench.root):
            os.utime(path, ns=(0, 0))

    lay(new)
    wanted, target = see(bench.root), bench.freeze()
    lay(old)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_a_linked_file_that_changes_changes_under_all_its_names(bench: Bench, see: Eye) -> None:
    (bench.root / "d").mkdir()
    (bench.root / "a").write_text("one")
    os.link(bench.root / "a", bench.root / "d" / "b")
    wanted, target = see(bench.root), bench.freeze()
    (bench.root / "a").write_text("two")
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)
    (bench.root / "a").chmod(0o600)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


# only some paths


def test_only_the_given_paths_change(bench: Bench) -> None:
    for name in ("x/one", "x/two", "y/deep/three", "z"):
        (bench.root / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.root / name).write_text("old")
    target = bench.freeze()
    for name in ("x/one", "x/two", "z"):
        (bench.root / name).write_text("new")
    shutil.rmtree(bench.root / "y")
    (bench.root / "x" / "added").write_text("new")
    times = {name: os.stat(bench.root / name).st_mtime_ns for name in ("x", ".")}
    bench.thaw(target, paths=[b"x/one", b"y/deep", b"x/added"])
    assert (bench.root / "x" / "one").read_text() == "old"
    assert (bench.root / "x" / "two").read_text() == "new"
    assert (bench.root / "z").read_text() == "new"
    assert (bench.root / "y" / "deep" / "three").read_text() == "old"
    assert not (bench.root / "x" / "added").exists()
    assert {name: os.stat(bench.root / name).st_mtime_ns for name in ("x", ".")} == times
    bench.check_clean()
    assert bench.freeze() == bench.shop.freeze(bench.root)
    bench.thaw(target, paths=[b"x/", b"./z"])
    bench.thaw(target, paths=[b""])
    bench.check(target)


def test_paths_that_are_nowhere_or_outside_are_refused(bench: Bench) -> None:
    target = bench.freeze()
    with pytest.raises(NotFound) as missing:
        bench.thaw(target, paths=[b"none"])
    assert missing.value.kind == "no_path"
    for path in (b"../x", b"/etc", b"a/../../x"):
        with pytest.raises(Invalid):
            bench.thaw(target, paths=[path])


def test_a_path_that_needs_a_directory_replaces_what_is_in_its_way(bench: Bench) -> None:
    (bench.root / "d" / "e").mkdir(parents=True)
    (bench.root / "d" / "e" / "f").write_text("f")
    (bench.root / "d" / "other").write_text("not asked for")
    (bench.root / "d").chmod(0o750)
    target = bench.freeze()
    shutil.rmtree(bench.root / "d")
    (bench.root / "d").write_text("in the way")
    bench.thaw(target, paths=[b"d/e/f"])
    assert (bench.root / "d" / "e" / "f").read_text() == "f"
    assert os.listdir(bench.root / "d") == ["e"]
    assert stat.S_IMODE(os.stat(bench.root / "d").st_mode) == 0o750
    assert bench.freeze() == bench.shop.freeze(bench.root)


def test_links_across_the_chosen_paths_are_cut_and_others_kept(bench: Bench) -> None:
    (bench.root / "a").write_text("one")
    os.link(bench.root / "a", bench.root / "b")
    os.link(bench.root / "a", bench.root / "c")
    target = bench.freeze()
    bench.thaw(target, paths=[b"a"])  # nothing differs: nothing is cut
    assert os.stat(bench.root / "a").st_nlink == 3
    (bench.root / "a").write_text("two")
    bench.thaw(target, paths=[b"a"])
    assert (bench.root / "a").read_text() == "one"
    assert (bench.root / "b").read_text() == (bench.root / "c").read_text() == "two"
    assert os.stat(bench.root / "b").st_nlink == 2
    assert bench.freeze() == bench.shop.freeze(bench.root)


# what is no state


def _ignore(bench: Bench, text: bytes) -> None:
    (bench.root / ".ortetignore").write_bytes(text)


def test_ignored_files_are_never_touched(bench: Bench) -> None:
    (bench.root / "src").mkdir()
    (bench.root / "src" / "f").write_text("f")
    _ignore(bench, b"*.log\nbuild/\n")
    target = bench.freeze()
    (bench.root / "more" / "inner").mkdir(parents=True)
    (bench.root / "more" / "f").write_text("goes")
    (bench.root / "more" / "inner" / "g").write_text("goes")
    (bench.root / "more" / "plain").mkdir()
    (bench.root / "more" / "inner" / "x.log").write_text("stays")
    (bench.root / "src" / "y.log").write_text("stays")
    (bench.root / "build").mkdir()
    (bench.root / "build" / "out").write_text("stays")
    bench.freeze()
    report = bench.thaw(target)
    assert [(loss.path, loss.what) for loss in report.losses] == [("more", "ignored")]
    found = sorted(str(p.relative_to(bench.root)) for p in bench.root.rglob("*"))
    assert found == [
        ".ortetignore",
        "build",
        "build/out",
        "more",
        "more/inner",
        "more/inner/x.log",
        "src",
        "src/f",
        "src/y.log",
    ]
    bench.check_clean()
    # the directory that stayed is seen at the next look, by either way of looking
    assert bench.freeze() == bench.shop.freeze(bench.root)
    shutil.rmtree(bench.root / "more")
    bench.thaw(target)
    bench.check(target)


def test_an_ignored_thing_in_the_place_of_a_file_stays(bench: Bench) -> None:
    (bench.root / "out").write_text("state in the target")
    (bench.root / "d").mkdir()
    (bench.root / "d" / "f").write_text("f")
    target = bench.freeze()
    (bench.root / "out").unlink()
    shutil.rmtree(bench.root / "d")
    _ignore(bench, b"out\nd\n")
    bench.freeze()
    (bench.root / "out").write_text("mine")
    (bench.root / "d").mkdir()
    (bench.root / "d" / "mine").write_text("mine")
    report = bench.thaw(target)
    assert {(loss.path, loss.what) for loss in report.losses} == {
        ("out", "ignored"),
        ("d", "ignored"),
    }
    assert (bench.root / "out").read_text() == "mine"
    assert os.listdir(bench.root / "d") == ["mine"]


def test_a_directory_that_must_stay_blocks_what_would_replace_it(bench: Bench) -> None:
    (bench.root / "it").write_text("a file in the target")
    _ignore(bench, b"*.log")
    target = bench.freeze()
    (bench.root / "it").unlink()
    (bench.root / "it").mkdir()
    (bench.root / "it" / "x.log").write_text("stays")
    (bench.root / "it" / "y").write_text("goes")
    report = bench.thaw(target)
    assert {loss.path for loss in report.losses} == {"it"}
    assert os.listdir(bench.root / "it") == ["x.log"]
    bench.check_clean()


def test_files_left_out_for_their_size_stay(bench: Bench) -> None:
    _ignore(bench, b"size > 1KB\n")
    target = bench.freeze()
    (bench.root / "d").mkdir()
    (bench.root / "d" / "large").write_bytes(bytes(2000))
    (bench.root / "d" / "small").write_bytes(bytes(20))
    report = bench.thaw(target)
    assert [loss.path for loss in report.losses] == ["d"]
    assert os.listdir(bench.root / "d") == ["large"]


# somebody else writes at the same time


CHANGES = {
    "content": "printf SAVED > f",
    "same size and time": "printf NOW > f; touch -d @0.000000009 f",
    "saved by rename": "printf now > t; mv t f",
    "removed": "rm f",
    "mode": "chmod 600 f",
    "now a directory": "rm f; mkdir f",
    "in a directory that goes": "printf fresh > goes/fresh",
    "changed in one that goes": "printf fresh > goes/g",
    "removed from one that goes": "rm goes/g",
    "one that goes is a file": "rm -r goes; printf x > goes",
    "in the place of one that comes": "printf mine > comes",
    "a parent is a link": "mv p ../p; ln -s ../p p",
    "a parent is gone": "rm -r p",
    "metadata only": "printf SAVED > meta",
}


def _two_states(bench: Bench) -> tuple[Image, Image]:
    root = bench.root
    for name, text in {"f": "was", "comes": "c", "p/f": "was", "meta": "m"}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
        os.utime(root / name, ns=(9, 9))
    target = bench.freeze()
    (root / "f").write_text("now")
    os.utime(root / "f", ns=(9, 9))
    (root / "p" / "f").write_text("now")
    (root / "comes").unlink()
    (root / "meta").chmod(0o600)
    (root / "goes").mkdir()
    (root / "goes" / "g").write_text("g")
    return target, bench.freeze()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_since_the_freeze_is_a_conflict_and_nothing_is_touched(
    bench: Bench, see: Eye, name: str
) -> None:
    target, current = _two_states(bench)
    shell(CHANGES[name], bench.root)
    before = see(bench.root)
    with pytest.raises(Conflict) as error:
        bench.thaw(target, current=current)
    assert error.value.kind == "changed_meanwhile"
    assert see(bench.root) == before
    bench.check_clean()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_the_new_files_are_written_is_a_conflict_too(
    bench: Bench, see: Eye, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target, current = _two_states(bench)
    real, before = build_, {}

    def build(*args: Any, **more: Any) -> Any:
        made = real(*args, **more)
        shell(CHANGES[name], bench.root)
        before.update(see(bench.root))
        return made

    monkeypatch.setattr("ortet.machine.thaw.build", build)
    with pytest.raises(Conflict):
        bench.thaw(target, current=current)
    assert see(bench.root) == before
    bench.check_clean()


@pytest.mark.parametrize("name", ["content", "same size and time", "saved by rename"])
def test_a_save_in_the_last_moment_is_not_lost(
    bench: Bench, see: Eye, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target, current = _two_states(bench)
    real, before = act_, {}

    def act(*args: Any) -> None:
        shell(CHANGES[name], bench.root)
        before.update(see(bench.root))
        real(*args)

    monkeypatch.setattr("ortet.machine.thaw.act", act)
    if name == "same size and time":  # cannot be told apart by what a kept file still shows
        bench.thaw(target, current=current)
        return
    with pytest.raises(Conflict):
        bench.thaw(target, current=current)
    after = see(bench.root)
    assert {p: after[p][3] for p in after} == {p: before[p][3] for p in before}
    bench.check_clean()


def test_a_file_just_written_is_not_taken_for_changed(bench: Bench) -> None:
    # racy: written in the same moment as it was frozen, so the index cannot vouch for it
    (bench.root / "f").write_text("one")
    target = bench.freeze()
    (bench.root / "f").write_text("two")
    bench.index.horizon = 0
    current = bench.freeze()
    bench.thaw(target, current=current)
    bench.check(target)


# failures and kill -9


def _nested(bench: Bench, torture: Torture) -> tuple[Image, Image]:
    torture(bench.root)
    target = bench.freeze()
    disturb(bench.root)
    return target, bench.freeze()


def fault(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    armed = faults.parse(text)
    monkeypatch.setattr(faults, "_armed", lambda: armed)


def survives(text: str, call: Callable[[], object]) -> bool:
    """Run `call` in a child in which this fault kills; False when it was killed."""
    child = os.fork()
    if child == 0:
        try:
            armed = faults.parse(text)
            faults._armed = lambda: armed  # type: ignore[assignment]
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


POINTS = [
    "thaw.begun",
    "build.directories",
    "build.files",
    "build.links",
    "thaw.staged",
    "thaw.journaled",
    "thaw.kept",
    "thaw.placed",
    "thaw.altered",
    "thaw.settled",
]
AFTER = ["thaw.done", "thaw.undone", "thaw.cleaned"]


@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_any_step_puts_everything_back(
    bench: Bench, torture: Torture, see: Eye, *, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    target, current = _nested(bench, torture)
    before = see(bench.root)
    for count in (1, 2, 7, 15):
        with monkeypatch.context() as patch:
            fault(patch, f"{point}:nospace:{count}")
            try:
                bench.thaw(target)
            except Unavailable as error:
                assert error.kind == "disk_full"
            else:
                break  # it comes to this point less often
        assert see(bench.root) == before
        bench.check(current)
    else:
        return
    assert count > 1


@pytest.mark.parametrize("point", POINTS)
def test_kill_at_any_step_and_the_old_files_are_back(
    bench: Bench, torture: Torture, see: Eye, point: str
) -> None:
    target, current = _nested(bench, torture)
    before = see(bench.root)
    count = 1
    while not survives(f"{point}:kill:{count}", lambda: bench.thaw(target)):
        assert recover(bench.stage)
        assert see(bench.root) == before
        assert not recover(bench.stage)
        bench.check(current)
        count += 1
    assert count > 1
    bench.index = bench.shop.index()
    bench.check(target)


@pytest.mark.parametrize("point", AFTER)
def test_kill_after_the_last_step_and_the_new_files_stay(
    bench: Bench, torture: Torture, see: Eye, point: str
) -> None:
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    disturb(bench.root)
    assert not survives(f"{point}:kill", lambda: bench.thaw(target))
    assert see(bench.root) == wanted
    assert recover(bench.stage)
    assert see(bench.root) == wanted
    bench.index = bench.shop.index()
    bench.check(target)


def test_going_back_may_be_killed_at_any_step_too(bench: Bench, torture: Torture, see: Eye) -> None:
    target, current = _nested(bench, torture)
    before = see(bench.root)
    for first in ("thaw.placed:kill:6", "thaw.settled:kill"):
        for point in ("thaw.undo", "thaw.undone", "thaw.cleaned"):
            count = 1
            while True:
                assert not survives(first, lambda: bench.thaw(target))
                if survives(f"{point}:kill:{count}", lambda: recover(bench.stage)):
                    break
                recover(bench.stage)
                assert see(bench.root) == before
                bench.check_clean()
                count += 5
            assert count > 1
            assert see(bench.root) == before
    bench.check(current)


def test_the_next_thaw_recovers_by_itself(bench: Bench, torture: Torture, see: Eye) -> None:
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    disturb(bench.root)
    assert not survives("thaw.placed:kill:3", lambda: bench.thaw(target))
    recover(bench.stage)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_what_was_saved_between_kill_and_recovery_stays(bench: Bench) -> None:
    for name in ("placed", "kept", "other"):
        (bench.root / name).write_text("target")
    target = bench.freeze()
    for name in ("placed", "kept", "other"):
        (bench.root / name).write_text("current")
    assert not survives("thaw.placed:kill:2", lambda: bench.thaw(target))
    assert (bench.root / "kept").read_text() == "target"
    (bench.root / "kept").write_text("saved by an editor")
    (bench.root / "new").write_text("new")
    recover(bench.stage)
    assert (bench.root / "kept").read_text() == "saved by an editor"
    assert (bench.root / "placed").read_text() == "current"
    assert (bench.root / "other").read_text() == "current"
    assert (bench.root / "new").read_text() == "new"
    bench.check_clean()


def test_a_workspace_that_is_gone_is_told_and_nothing_thrown_away(bench: Bench) -> None:
    (bench.root / "f").write_text("target")
    target = bench.freeze()
    (bench.root / "f").write_text("current")
    assert not survives("thaw.placed:kill", lambda: bench.thaw(target))
    moved = bench.root.rename(bench.root.with_name("moved"))
    with pytest.raises(NotFound) as error:
        recover(bench.stage)
    assert error.value.kind == "no_workspace"
    moved.rename(bench.root)
    recover(bench.stage)
    assert (bench.root / "f").read_text() == "current"


# places


@pytest.fixture
def mounted(place: Path) -> Iterator[Callable[..., None]]:
    points: list[Path] = []

    def run(point: Path, *arguments: str) -> None:
        subprocess.run(["mount", *arguments, str(point)], check=True)
        points.append(point)

    yield run
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)


def test_a_mount_is_thawed_from_inside(
    bench: Bench, place: Path, torture: Torture, *, see: Eye, mounted: Callable[..., None]
) -> None:
    (place / "volume").mkdir()
    mounted(bench.root, "--bind", str(place / "volume"))
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    disturb(bench.root)
    before, current = see(bench.root), bench.freeze()
    for point in ("thaw.begun", "thaw.staged", "thaw.placed", "thaw.settled"):
        assert not survives(f"{point}:kill", lambda: bench.thaw(target))
        recover(bench.stage)
        assert see(bench.root) == before
        bench.check(current)
    for point in AFTER:
        assert not survives(f"{point}:kill", lambda: bench.thaw(target))
        recover(bench.stage)
        assert see(bench.root) == wanted
        bench.index = bench.shop.index()
        bench.thaw(current)
        assert see(bench.root) == before
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_an_overlay_that_cannot_rename_directories(
    bench: Bench, place: Path, see: Eye, mounted: Callable[..., None]
) -> None:
    for name in ("lower", "up", "up/upper", "up/work"):
        (place / name).mkdir()
    for name in ("gone/deep/f", "gone/g", "swap/x", "same"):
        (place / "lower" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "lower" / name).write_text(name)
    (place / "lower" / "gone" / "deep").chmod(0o710)
    os.utime(place / "lower" / "gone" / "deep", ns=(5, 5))
    os.setxattr(place / "lower" / "gone", "user.kept", b"1")
    options = f"lowerdir={place}/lower,upperdir={place}/up/upper,workdir={place}/up/work"
    mounted(bench.root, "-t", "overlay", "-o", options, "none")
    (place / "wanted").mkdir()
    (place / "wanted" / "same").write_text("same")
    (place / "wanted" / "swap").write_text("a file now")
    target = bench.shop.freeze(place / "wanted")
    before, current = see(bench.root), bench.freeze()
    with pytest.raises(OSError):
        os.rename(bench.root / "gone", bench.root / "elsewhere")
    for point in ("thaw.kept", "thaw.dropped", "thaw.placed", "thaw.settled"):
        assert not survives(f"{point}:kill", lambda: bench.thaw(target))
        recover(bench.stage)
        assert see(bench.root) == before
        bench.check(current)
    bench.thaw(target)
    assert sorted(os.listdir(bench.root)) == ["same", "swap"]
    bench.check(target)


def test_a_full_disk_leaves_the_old_tree(
    bench: Bench, see: Eye, mounted: Callable[..., None]
) -> None:
    mounted(bench.root.parent, "-t", "tmpfs", "-o", "size=4m", "none")
    bench.root.mkdir()
    (bench.root / "keep").write_text("keep")
    small = bench.freeze()
    for number in range(20):
        (bench.root / f"f{number}").write_bytes(os.urandom(150_000))
    large = bench.freeze()
    bench.thaw(small)
    (bench.root / "ballast").write_bytes(os.urandom(2_000_000))
    before, current = see(bench.root), bench.freeze()
    free = os.statvfs(bench.root).f_bfree
    with pytest.raises(Unavailable) as error:
        bench.thaw(large)
    assert error.value.kind == "disk_full"
    assert see(bench.root) == before
    assert os.statvfs(bench.root).f_bfree == free
    bench.check(current)
    (bench.root / "ballast").unlink()
    bench.thaw(large)
    bench.check(large)


def test_another_mount_inside_is_refused_and_nothing_changes(
    bench: Bench, see: Eye, mounted: Callable[..., None]
) -> None:
    (bench.root / "m").mkdir()
    (bench.root / "a").write_text("a")
    target = bench.freeze()
    mounted(bench.root / "m", "-t", "tmpfs", "none")
    (bench.root / "m" / "f").write_text("f")
    (bench.root / "a").write_text("b")
    before = see(bench.root)
    with pytest.raises(OrtetError) as error:
        bench.thaw(target)
    assert error.value.kind == "crosses_mount"
    assert see(bench.root) == before
    bench.check_clean()


# users and images


def test_an_unprivileged_user_goes_back_and_forth(
    shop: Any, bench: Bench, torture: Torture, *, place: Path, work: Callable[..., Any]
) -> None:
    torture(bench.root)
    target = shop.put(bench.freeze())
    disturb(bench.root)
    (bench.root / "closed").unlink()
    (bench.root / "closed" / "lower").mkdir(parents=True)
    (bench.root / "closed" / "lower" / "f").write_text("f")
    (bench.root / "closed" / "lower").chmod(0o555)
    (bench.root / "closed").chmod(0o555)
    other = shop.put(bench.freeze())
    shop.objects.close()
    home = place / "theirs"
    home.mkdir()
    os.chown(home, 65534, 65534)
    first = work("materialise", other, home / "root", uid=65534)
    assert first.value["again"] == other, first.text
    # each process finds the index of the one before: it knows what could not be applied
    for oid in (target, other, target):
        done = work("thaw", oid, home / "root", home / "stage", uid=65534)
        assert done.code == 0, done.text
        assert done.value["again"] == oid
    assert sorted(os.listdir(home)) == ["index", "root", "stage"]


def test_what_the_disk_could_not_be_given_is_no_conflict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "stays"):
        (bench.root / name).mkdir()
        (bench.root / name / "f").write_text("f")
        os.mknod(bench.root / name / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    target = bench.freeze()
    shutil.rmtree(bench.root)
    real = os.mknod

    def mknod(*args: Any, **more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", mknod)
    bench.index = bench.shop.index()
    report = materialise(
        bench.shop.objects, bench.shop.trees, target, bench.root, index=bench.index
    )
    assert [loss.what for loss in report.losses] == ["device", "device"]
    current = bench.freeze()
    assert current == target
    (bench.root / "stays" / "f").write_text("changed")
    changed = bench.freeze()
    gone = bench.shop.trees.patch_paths(changed.root, {b"gone": None, b"stays/device": None})
    monkeypatch.setattr(os, "mknod", real)
    bench.thaw(Image(gone))
    assert sorted(os.listdir(bench.root)) == ["stays"]
    assert os.listdir(bench.root / "stays") == ["f"]
    assert bench.freeze() == Image(gone)


@pytest.mark.parametrize("name", [b"../evil", b"..", b"a/b", b"p/evil", b""])
def test_a_malicious_image_never_leads_outside(
    bench: Bench, place: Path, see: Eye, name: bytes
) -> None:
    (place / "outside").mkdir()
    (bench.root / "p").symlink_to(place / "outside")
    (bench.root / "d").mkdir()
    current = bench.freeze()
    data = put_bytes(bench.shop.objects, b"evil")
    evil = Entry(name, stat.S_IFREG | 0o644, 0, size=4, data=data)
    oid = bench.shop.objects.put(Kind.TREE, encode(Page(0, [evil])))
    inner = Entry(b"new", stat.S_IFDIR | 0o755, 0, data=oid, cid=oid)
    both = bench.shop.objects.put(Kind.TREE, encode(Page(0, [inner])))
    for tree in (oid, both):
        before = see(bench.root)
        with pytest.raises(Corrupt):
            bench.thaw(Image(Entry(b"", stat.S_IFDIR | 0o755, 0, data=tree, cid=tree)))
        assert see(bench.root) == before
        assert os.listdir(place / "outside") == []
        assert os.listdir(bench.root.parent) == ["root"]
        bench.check(current)


def test_a_missing_object_leaves_the_old_tree(bench: Bench, see: Eye) -> None:
    (bench.root / "f").write_text("f")
    current = bench.freeze()
    lost = Entry(b"f", stat.S_IFREG | 0o644, 0, size=3, data=b"x" * 32)
    tree = bench.shop.trees.build([lost])
    before = see(bench.root)
    with pytest.raises(NotFound):
        bench.thaw(Image(Entry(b"", stat.S_IFDIR | 0o755, 0, data=tree.oid, cid=tree.cid)))
    assert see(bench.root) == before
    bench.check(current)
