"""Whole images into new directories: identical, complete or not at all."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import NotFound, Unavailable
from ortet.history.records import Image, TreeEntry
from ortet.machines.restore.checkout import checkout_image
from ortet.objects.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


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
