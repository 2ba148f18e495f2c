"""A live directory becomes equal to an image."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet._util.codec import encode
from ortet.errors import Corrupt, NotFound, OrtetError, Unavailable
from ortet.history.records import Image, TreeEntry, TreePage
from ortet.machines.restore.restore import recover_restore
from ortet.objects.base import Kind
from ortet.objects.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def test_restore_moves_back_and_forth_between_very_different_trees(
    bench: Any, torture: Torture, see: Eye
) -> None:
    torture(bench.root)
    before, first = see(bench.root), bench.freeze()
    bench.disturb()
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


def test_restore_touches_only_differing_files(bench: Any) -> None:
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


@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", KINDS)
def test_restore_replaces_any_file_type_by_any_other(
    bench: Any, see: Eye, old: str, new: str
) -> None:
    above = bench.root / "d"
    above.mkdir()
    bench.shell(KINDS[new], above)
    wanted, target = see(bench.root), bench.freeze()
    bench.shell(f"rm -rf it; {KINDS[old]}", above)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def _ignore(bench: Any, text: bytes) -> None:
    (bench.root / ".ortetignore").write_bytes(text)


def test_ignored_files_are_never_touched(bench: Any) -> None:
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


def test_an_ignored_entry_at_the_path_of_a_file_stays(bench: Any) -> None:
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


def test_a_directory_with_ignored_files_is_not_replaced_by_a_file(bench: Any) -> None:
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


def test_files_left_out_for_their_size_stay(bench: Any) -> None:
    _ignore(bench, b"size > 1KB\n")
    target = bench.freeze()
    (bench.root / "d").mkdir()
    (bench.root / "d" / "large").write_bytes(bytes(2000))
    (bench.root / "d" / "small").write_bytes(bytes(20))
    report = bench.thaw(target)
    assert [loss.path for loss in report.losses] == ["d"]
    assert os.listdir(bench.root / "d") == ["large"]


def test_restore_of_a_mount_point_can_be_killed_and_recovered(
    bench: Any, place: Path, torture: Torture, *, see: Eye, mount: Callable[..., Path]
) -> None:
    (place / "volume").mkdir()
    mount(bench.root, "--bind", str(place / "volume"))
    torture(bench.root)
    wanted, target = see(bench.root), bench.freeze()
    bench.disturb()
    before, current = see(bench.root), bench.freeze()
    for point in ("thaw.begun", "thaw.staged", "thaw.placed", "thaw.settled"):
        assert not bench.survives(f"{point}:kill", lambda: bench.thaw(target))
        recover_restore(bench.stage)
        assert see(bench.root) == before
        bench.check(current)
    for point in ("thaw.done", "thaw.undone", "thaw.cleaned"):
        assert not bench.survives(f"{point}:kill", lambda: bench.thaw(target))
        recover_restore(bench.stage)
        assert see(bench.root) == wanted
        bench.index = bench.shop.index()
        bench.thaw(current)
        assert see(bench.root) == before
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_restore_works_on_an_overlay_that_cannot_rename_directories(
    bench: Any, place: Path, see: Eye, mount: Callable[..., Path]
) -> None:
    for name in ("lower", "up", "up/upper", "up/work"):
        (place / name).mkdir()
    for name in ("gone/deep/f", "gone/g", "swap/x", "same", "edited"):
        (place / "lower" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "lower" / name).write_text(name)
    (place / "lower" / "gone" / "deep").chmod(0o710)
    os.utime(place / "lower" / "gone" / "deep", ns=(5, 5))
    os.setxattr(place / "lower" / "gone", "user.kept", b"1")
    options = f"lowerdir={place}/lower,upperdir={place}/up/upper,workdir={place}/up/work"
    mount(bench.root, "-t", "overlay", "-o", options, "none")
    (place / "wanted").mkdir()
    (place / "wanted" / "same").write_text("same")
    (place / "wanted" / "swap").write_text("a file now")
    (place / "wanted" / "edited").write_text("otherwise")
    target = bench.shop.freeze(place / "wanted")
    before, current = see(bench.root), bench.freeze()
    with pytest.raises(OSError):
        os.rename(bench.root / "gone", bench.root / "elsewhere")
    for point in ("thaw.kept", "thaw.dropped", "thaw.placed", "thaw.settled"):
        assert not bench.survives(f"{point}:kill", lambda: bench.thaw(target))
        recover_restore(bench.stage)
        assert see(bench.root) == before
        bench.check(current)
    bench.thaw(target)
    assert sorted(os.listdir(bench.root)) == ["edited", "same", "swap"]
    bench.check(target)


def test_a_full_disk_leaves_the_old_tree(bench: Any, see: Eye, mount: Callable[..., Path]) -> None:
    mount(bench.root.parent, "-t", "tmpfs", "-o", "size=4m", "none")
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
    bench: Any, see: Eye, mount: Callable[..., Path]
) -> None:
    (bench.root / "m").mkdir()
    (bench.root / "a").write_text("a")
    target = bench.freeze()
    mount(bench.root / "m", "-t", "tmpfs", "none")
    (bench.root / "m" / "f").write_text("f")
    (bench.root / "a").write_text("b")
    before = see(bench.root)
    with pytest.raises(OrtetError) as error:
        bench.thaw(target)
    assert error.value.kind == "crosses_mount"
    assert see(bench.root) == before
    bench.check_clean()


def test_an_unprivileged_user_goes_back_and_forth(
    shop: Any, bench: Any, torture: Torture, *, place: Path, worker: Callable[..., Any]
) -> None:
    torture(bench.root)
    target = shop.put(bench.freeze())
    bench.disturb()
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
    first = worker("materialise", other, home / "root", uid=65534)
    assert first.value["again"] == other, first.text
    # each process finds the index of the one before: it knows what could not be applied
    for oid in (target, other, target):
        done = worker("thaw", oid, home / "root", home / "stage", uid=65534)
        assert done.code == 0, done.text
        assert done.value["again"] == oid
    assert sorted(os.listdir(home)) == ["index", "root", "stage"]


@pytest.mark.parametrize("name", [b"../evil", b"..", b"a/b", b"p/evil", b""])
def test_a_malicious_image_never_leads_outside(
    bench: Any, place: Path, see: Eye, name: bytes
) -> None:
    (place / "outside").mkdir()
    (bench.root / "p").symlink_to(place / "outside")
    (bench.root / "d").mkdir()
    current = bench.freeze()
    data = put_bytes(bench.shop.objects, b"evil")
    evil = TreeEntry(name, stat.S_IFREG | 0o644, 0, size=4, data=data)
    oid = bench.shop.objects.put(Kind.TREE, encode(TreePage(0, [evil])))
    inner = TreeEntry(b"new", stat.S_IFDIR | 0o755, 0, data=oid, cid=oid)
    both = bench.shop.objects.put(Kind.TREE, encode(TreePage(0, [inner])))
    for tree in (oid, both):
        before = see(bench.root)
        with pytest.raises(Corrupt):
            bench.thaw(Image(TreeEntry(b"", stat.S_IFDIR | 0o755, 0, data=tree, cid=tree)))
        assert see(bench.root) == before
        assert os.listdir(place / "outside") == []
        assert os.listdir(bench.root.parent) == ["root"]
        bench.check(current)


def test_a_missing_object_leaves_the_old_tree(bench: Any, see: Eye) -> None:
    (bench.root / "f").write_text("f")
    current = bench.freeze()
    lost = TreeEntry(b"f", stat.S_IFREG | 0o644, 0, size=3, data=b"x" * 32)
    tree = bench.shop.trees.build([lost])
    before = see(bench.root)
    with pytest.raises(NotFound):
        bench.thaw(Image(TreeEntry(b"", stat.S_IFDIR | 0o755, 0, data=tree.oid, cid=tree.cid)))
    assert see(bench.root) == before
    bench.check(current)


# any tree into any other

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f"])
THINGS = st.sampled_from(
    [
        "printf one > {0}",
        "printf two > {0}; chmod 700 {0}",
        "printf one > {0}; touch -d @5 {0}",
        "mkdir {0}",
        "ln -s x {0}",
        "mkfifo {0}",
        "ln $(find . -type f | sort | head -1) {0}",
    ]
)
TREES = st.lists(st.tuples(NAMES, THINGS), max_size=6)


def lay(root: Path, things: list[tuple[str, str]]) -> None:
    """Some of it cannot be (a name below a file, a link to nothing): then it is left out."""
    for name, how in things:
        script = f"mkdir -p $(dirname {name}) && rm -rf {name} && {how.format(name)}"
        subprocess.run(["sh", "-c", script], cwd=root, check=False, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(old=TREES, new=TREES)
def test_restore_turns_any_tree_into_any_other_tree(
    bench: Any, see: Eye, old: list[tuple[str, str]], new: list[tuple[str, str]]
) -> None:
    shutil.rmtree(bench.root)
    bench.root.mkdir()
    lay(bench.root, new)
    wanted, target = see(bench.root), bench.freeze()
    bench.shell("rm -rf ./*")
    lay(bench.root, old)
    before, current = see(bench.root), bench.freeze()
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)
    bench.thaw(current)
    assert see(bench.root) == before
    bench.check(current)
