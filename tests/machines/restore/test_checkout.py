"""Where a new directory is built, and what is left of it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ortet.history.records import Image, TreeEntry
from ortet.machines.restore.checkout import StagingDirectory, checkout_image
from ortet.objects.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_an_empty_directory_is_taken_and_anything_else_refused(
    shop: Any, place: Path, see: Eye
) -> None:
    (place / "from").mkdir()
    (place / "from" / "f").write_text("x")
    image = shop.freeze(place / "from")
    (place / "empty").mkdir()
    checkout_image(shop.objects, shop.trees, image, place / "empty")
    assert see(place / "empty") == see(place / "from")
    (place / "file").write_text("mine")
    (place / "full").mkdir()
    (place / "full" / "mine").write_text("mine")
    for name in ("file", "full", "empty"):
        before = see(place / name) if name != "file" else None
        with pytest.raises(Invalid) as error:
            checkout_image(shop.objects, shop.trees, image, place / name)
        assert error.value.kind == "not_empty"
        assert before is None or see(place / name) == before
    assert (place / "file").read_text() == "mine"
    assert _names(place) == ["empty", "file", "from", "full", "store"]


def test_missing_parents_are_made_and_a_link_is_followed(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    image = shop.freeze(place / "from")
    (place / "link").symlink_to("real")
    checkout_image(shop.objects, shop.trees, image, place / "link" / "a" / "b")
    assert (place / "real" / "a" / "b").is_dir()


def test_a_mount_is_filled_from_inside(
    shop: Any, place: Path, mount: Callable[..., Path], torture: Torture, see: Eye
) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    (place / "volume").mkdir()
    volume = mount("bound", "--bind", str(place / "volume"))
    index = shop.index()
    report = checkout_image(shop.objects, shop.trees, image, volume, index=index)
    assert report.losses == []
    assert see(volume) == see(place / "from")
    assert shop.freeze(volume, index) == image
    with pytest.raises(Invalid):
        checkout_image(shop.objects, shop.trees, image, volume)
    assert see(volume) == see(place / "from")


@pytest.mark.root
def test_materialise_below_an_unwritable_parent_needs_an_existing_directory(
    shop: Any, place: Path, worker: Callable[..., Any], see: Eye
) -> None:
    (place / "from" / "closed").mkdir(parents=True)
    (place / "from" / "closed" / "f").write_text("x")
    (place / "from" / "closed").chmod(0o555)
    for path in (place / "from", place / "from" / "closed", place / "from" / "closed" / "f"):
        os.chown(path, 65534, 65534)
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    parent = place / "parent"
    (parent / "mine").mkdir(parents=True)
    os.chown(parent / "mine", 65534, 65534)
    refused = worker("materialise", oid, parent / "to", uid=65534)
    assert refused.value["kind"] == "not_permitted"
    done = worker("materialise", oid, parent / "mine", uid=65534)
    assert done.code == 0, done.text
    assert done.value["again"] == oid
    assert see(parent / "mine") == see(place / "from")


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_killed_restore_into_a_mount_is_cleaned_too(
    shop: Any,
    place: Path,
    mount: Callable[..., Path],
    *,
    torture: Torture,
    see: Eye,
    worker: Callable[..., Any],
    count: int,
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "volume").mkdir()
    volume = mount("bound", "--bind", str(place / "volume"))
    done = worker("materialise", oid, volume, fault=f"stage.moved:kill:{count}")
    assert done.code == -signal.SIGKILL
    assert len(_names(volume)) > count
    assert worker("materialise", oid, volume).code == 0
    assert see(volume) == see(place / "from")


def test_one_of_several_concurrent_restores_to_a_directory_succeeds(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    (place / "from" / "f").write_text("x")
    image = shop.freeze(place / "from")
    with StagingDirectory(place / "to"):
        with pytest.raises(Conflict) as error:
            checkout_image(shop.objects, shop.trees, image, place / "to")
        assert error.value.kind == "restore_running"
        assert len([n for n in _names(place) if n.startswith(".ortet.stage.")]) == 1
    outcomes: list[str] = []

    def restore() -> None:
        try:
            checkout_image(shop.objects, shop.trees, image, place / "to")
            outcomes.append("done")
        except (Conflict, Invalid) as error:
            outcomes.append(error.kind)

    threads = [threading.Thread(target=restore) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("done") == 1
    assert set(outcomes) <= {"done", "restore_running", "not_empty"}
    assert (place / "to" / "f").read_text() == "x"
    assert _names(place) == ["from", "store", "to"]


def test_a_place_that_may_not_be_written_is_refused(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    image = shop.freeze(place / "from")
    with pytest.raises((Refused, Unavailable)):
        checkout_image(shop.objects, shop.trees, image, Path("/proc/ortet-test"))


@pytest.mark.parametrize("kind", ["default acl", "setgid", "umask"])
def test_a_default_acl_setgid_or_umask_does_not_change_restored_files(
    shop: Any, place: Path, torture: Torture, see: Eye, kind: str
) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    parent = place / "parent"
    parent.mkdir()
    old = os.umask(0o027 if kind == "umask" else 0o022)
    try:
        if kind == "setgid":
            os.chown(parent, 0, 4321)
            parent.chmod(0o2777)
        elif kind == "default acl":
            subprocess.run(["setfacl", "-d", "-m", "u:99:rwx,o::---", str(parent)], check=True)
        assert checkout_image(shop.objects, shop.trees, image, parent / "to").losses == []
    finally:
        os.umask(old)
    assert see(parent / "to") == see(place / "from")


def test_a_stage_directory_removed_before_it_is_opened_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process took it for a leftover, and was done with it before we looked."""
    (place / "to").mkdir()
    made: list[bytes] = []
    mkdir = os.mkdir

    def gone_once(name: bytes, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        if not made:
            os.rmdir(name, dir_fd=dir_fd)
        made.append(name)

    monkeypatch.setattr("ortet.machines.restore.checkout.os.mkdir", gone_once)
    with StagingDirectory(place / "to"):
        pass
    assert len(made) == 2


def test_materialise_gives_an_identical_tree(
    shop: Any, place: Path, torture: Torture, see: Eye
) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    index = shop.index()
    report = checkout_image(shop.objects, shop.trees, image, place / "to", index=index)
    assert report.losses == []
    before, after = see(place / "from"), see(place / "to")
    assert report.written == len(before) == len(after)
    for path in before:
        assert after[path] == before[path], path
    # the state of the copy is the same, read anew or with the index that was filled
    assert shop.freeze(place / "to") == image
    assert shop.freeze(place / "to", index) == image


def test_the_filled_index_saves_all_reading(shop: Any, place: Path, torture: Torture) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    index = shop.index()
    checkout_image(shop.objects, shop.trees, image, place / "to", index=index)
    known = [(b"", image.root), *shop.trees.walk(image.root)]
    root = os.open(place / "to", os.O_RDONLY)
    for path, entry in known:
        fd = root
        *above, name = path.split(b"/")
        for part in above:
            inner = os.open(part, os.O_RDONLY, dir_fd=fd)
            if fd != root:
                os.close(fd)
            fd = inner
        now = os.stat(name or b".", dir_fd=fd, follow_symlinks=False)
        assert index.lookup(path, now) == entry, path
        if fd != root:
            os.close(fd)
    os.close(root)


def test_a_missing_object_leaves_nothing(shop: Any, place: Path) -> None:
    gone = TreeEntry(b"f", stat.S_IFREG | 0o644, 0, size=3, data=b"g" * 32)
    there = TreeEntry(b"e", stat.S_IFREG | 0o644, 0, size=3, data=put_bytes(shop.objects, b"abc"))
    tree = shop.trees.build([there, gone])
    image = Image(TreeEntry(b"", stat.S_IFDIR | 0o755, 0, data=tree.oid, cid=tree.cid))
    with pytest.raises(NotFound):
        checkout_image(shop.objects, shop.trees, image, place / "new" / "to")
    assert _names(place) == ["store"]


def test_an_unprivileged_restore_reports_every_attribute_it_cannot_set(
    shop: Any, place: Path, torture: Torture, see: Eye, worker: Callable[..., Any]
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 65534, 65534)
    done = worker("materialise", oid, place / "theirs" / "to", uid=65534)
    assert done.code == 0, done.text
    before, after = see(place / "from"), see(place / "theirs" / "to")
    told = {(os.fsencode(path), what) for path, what in done.value["losses"]}
    assert {what for _, what in told} == {"owner", "mode", "xattr", "device"}
    for path, was in before.items():
        if (path, "device") in told:
            assert path in (b"null", b"block")
            assert path not in after
            continue
        mode, owner, mtime, content, _, xattrs, group = after[path]
        assert (mtime, content, group) == (was[2], was[3], was[6]), path
        assert mode == was[0] or (path, "mode") in told
        same = [other for other, how in before.items() if how[6] == group]  # told of one name
        assert owner == was[1] or any((other, "owner") in told for other in same)
        assert xattrs == was[5] or (path, "xattr") in told
    # what could not be applied is remembered: the next commit has the same state
    assert done.value["again"] == oid


def test_a_full_disk_leaves_nothing(shop: Any, place: Path, mount: Callable[..., Path]) -> None:
    small = mount("small", "-t", "tmpfs", "-o", "size=2m", "none")
    (place / "from").mkdir()
    for number in range(40):
        (place / "from" / f"f{number}").write_bytes(os.urandom(100_000))
    (place / "from" / "large").write_bytes(os.urandom(1_000_000))
    image = shop.freeze(place / "from")
    free = os.statvfs(small).f_bfree
    for dest in (small / "to", small / "deep" / "er"):
        with pytest.raises(Unavailable) as error:
            checkout_image(shop.objects, shop.trees, image, dest)
        assert error.value.kind == "disk_full"
        assert _names(small) == []
    with pytest.raises(Unavailable):  # the mount itself is the destination: built inside
        checkout_image(shop.objects, shop.trees, image, small)
    assert _names(small) == []
    assert os.statvfs(small).f_bfree == free


FAULTS = [
    "build.directories",
    "build.files",
    "build.links",
    "materialise.built",
    "stage.renamed",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_killed_restore_leaves_at_most_a_stage_that_the_next_removes(
    shop: Any, place: Path, torture: Torture, *, see: Eye, worker: Callable[..., Any], fault: str
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "room").mkdir()
    done = worker("materialise", oid, place / "room" / "to", fault=f"{fault}:kill")
    assert done.code == -signal.SIGKILL
    left = _names(place / "room")
    if fault == "stage.renamed":
        assert left == ["to"]
    else:
        assert len(left) == 1
        assert left[0].startswith(".ortet.stage.")
        assert worker("materialise", oid, place / "room" / "to").code == 0
    assert not [n for n in _names(place / "room") if n not in ("to", "index")]
    assert see(place / "room" / "to") == see(place / "from")
