"""Whole images into new directories: identical, complete or not at all, never outside."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortet.codec import encode
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unavailable
from ortet.graph.records import Entry, Image, Page
from ortet.machine.materialise import materialise
from ortet.machine.stage import Stage
from ortet.store.abc import Kind
from ortet.store.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


@pytest.fixture
def mount(place: Path) -> Iterator[Callable[..., Path]]:
    """Mount something below the test's directory, for the length of the test."""
    mounted: list[Path] = []

    def run(name: str, *arguments: str) -> Path:
        path = place / name
        path.mkdir(exist_ok=True)
        subprocess.run(["mount", *arguments, str(path)], check=True)
        mounted.append(path)
        return path

    yield run
    for path in reversed(mounted):
        subprocess.run(["umount", str(path)], check=True)


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_everything_comes_back_identical(
    shop: Any, place: Path, torture: Torture, see: Eye
) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    index = shop.index()
    report = materialise(shop.objects, shop.trees, image, place / "to", index=index)
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
    materialise(shop.objects, shop.trees, image, place / "to", index=index)
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


@pytest.mark.parametrize("kind", ["default acl", "setgid", "umask"])
def test_what_the_parent_would_bequeath_does_not_get_in(
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
        assert materialise(shop.objects, shop.trees, image, parent / "to").losses == []
    finally:
        os.umask(old)
    assert see(parent / "to") == see(place / "from")


def test_an_empty_directory_is_taken_and_anything_else_refused(
    shop: Any, place: Path, see: Eye
) -> None:
    (place / "from").mkdir()
    (place / "from" / "f").write_text("x")
    image = shop.freeze(place / "from")
    (place / "empty").mkdir()
    materialise(shop.objects, shop.trees, image, place / "empty")
    assert see(place / "empty") == see(place / "from")
    (place / "file").write_text("mine")
    (place / "full").mkdir()
    (place / "full" / "mine").write_text("mine")
    for name in ("file", "full", "empty"):
        before = see(place / name) if name != "file" else None
        with pytest.raises(Invalid) as error:
            materialise(shop.objects, shop.trees, image, place / name)
        assert error.value.kind == "not_empty"
        assert before is None or see(place / name) == before
    assert (place / "file").read_text() == "mine"
    assert _names(place) == ["empty", "file", "from", "full", "store"]


def test_missing_parents_are_made_and_a_link_is_followed(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    image = shop.freeze(place / "from")
    (place / "link").symlink_to("real")
    materialise(shop.objects, shop.trees, image, place / "link" / "a" / "b")
    assert (place / "real" / "a" / "b").is_dir()


def test_a_missing_object_leaves_nothing(shop: Any, place: Path) -> None:
    gone = Entry(b"f", stat.S_IFREG | 0o644, 0, size=3, data=b"g" * 32)
    there = Entry(b"e", stat.S_IFREG | 0o644, 0, size=3, data=put_bytes(shop.objects, b"abc"))
    tree = shop.trees.build([there, gone])
    image = Image(Entry(b"", stat.S_IFDIR | 0o755, 0, data=tree.oid, cid=tree.cid))
    with pytest.raises(NotFound):
        materialise(shop.objects, shop.trees, image, place / "new" / "to")
    assert _names(place) == ["store"]


# malicious images


def _image(shop: Any, entries: list[Entry], links: object = None) -> Image:
    """An image with exactly these entries, past every check of the layers above."""
    oid = shop.objects.put(Kind.TREE, encode(Page(0, entries)))
    root = Entry(b"", stat.S_IFDIR | 0o755, 0, data=oid, cid=oid)
    return Image(root, b"" if links is None else shop.objects.put(Kind.META, encode(links)))


def _plain(shop: Any, name: bytes) -> Entry:
    data = put_bytes(shop.objects, b"evil")
    return Entry(name, stat.S_IFREG | 0o644, 0, size=4, data=data)


@pytest.mark.parametrize(
    "name", [b"../evil", b"..", b".", b"", b"/evil", b"a/b", b"link/evil", b"a\0b"]
)
@pytest.mark.parametrize("kind", ["file", "directory", "link", "node"])
def test_names_never_lead_outside(shop: Any, place: Path, name: bytes, kind: str) -> None:
    entry = {
        "file": _plain(shop, name),
        "directory": Entry(
            name, stat.S_IFDIR | 0o755, 0, data=_image(shop, [_plain(shop, b"x")]).root.data
        ),
        "link": Entry(name, stat.S_IFLNK | 0o777, 0, data=b"/etc"),
        "node": Entry(name, stat.S_IFIFO | 0o644, 0),
    }[kind]
    link = Entry(b"link", stat.S_IFLNK | 0o777, 0, data=b"..")
    (place / "room").mkdir()
    with pytest.raises((Corrupt, Unavailable)):
        materialise(shop.objects, shop.trees, _image(shop, [link, entry]), place / "room" / "to")
    assert _names(place) == ["room", "store"]
    assert _names(place / "room") == []


def test_a_link_and_a_directory_of_one_name_do_not_lead_outside(shop: Any, place: Path) -> None:
    (place / "outside").mkdir()
    inner = _image(shop, [_plain(shop, b"evil")]).root.data
    entries = [
        Entry(b"d", stat.S_IFLNK | 0o777, 0, data=os.fsencode(place / "outside")),
        Entry(b"d", stat.S_IFDIR | 0o755, 0, data=inner),
    ]
    for both in (entries, entries[::-1]):
        with pytest.raises((Corrupt, Unavailable, Invalid)) as error:
            materialise(shop.objects, shop.trees, _image(shop, both), place / "to")
        assert error.value.message
    assert _names(place / "outside") == []
    assert _names(place) == ["outside", "store"]


@pytest.mark.parametrize(
    "links",
    [
        [[b"a", b"../outside"]],
        [[b"a", b"missing"]],
        [[b"a", b"d"]],
        [[b"a", b"b"], [b"b", b"c"]],
        [[b"a", b"a"]],
        [[b"a", b"other"]],
    ],
)
def test_links_that_do_not_fit_are_damage(shop: Any, place: Path, links: list[list[bytes]]) -> None:
    (place / "outside").write_text("mine")
    other = Entry(b"other", stat.S_IFREG | 0o600, 0)
    directory = Entry(b"d", stat.S_IFDIR | 0o755, 0, data=shop.trees.empty().oid)
    entries = [_plain(shop, n) for n in (b"a", b"b", b"c")] + [directory, other]
    with pytest.raises(Corrupt) as error:
        materialise(shop.objects, shop.trees, _image(shop, entries, links), place / "to")
    assert error.value.kind == "bad_links"
    assert os.stat(place / "outside").st_nlink == 1
    assert _names(place) == ["outside", "store"]


# without privileges, on other file systems


def test_an_unprivileged_user_gets_all_it_can_and_the_rest_told(
    shop: Any, place: Path, torture: Torture, see: Eye, work: Callable[..., Any]
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 65534, 65534)
    done = work("materialise", oid, place / "theirs" / "to", uid=65534)
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
            materialise(shop.objects, shop.trees, image, dest)
        assert error.value.kind == "disk_full"
        assert _names(small) == []
    with pytest.raises(Unavailable):  # the mount itself is the destination: built inside
        materialise(shop.objects, shop.trees, image, small)
    assert _names(small) == []
    assert os.statvfs(small).f_bfree == free


def test_a_mount_is_filled_from_inside(
    shop: Any, place: Path, mount: Callable[..., Path], torture: Torture, see: Eye
) -> None:
    torture(place / "from")
    image = shop.freeze(place / "from")
    (place / "volume").mkdir()
    volume = mount("bound", "--bind", str(place / "volume"))
    index = shop.index()
    report = materialise(shop.objects, shop.trees, image, volume, index=index)
    assert report.losses == []
    assert see(volume) == see(place / "from")
    assert shop.freeze(volume, index) == image
    with pytest.raises(Invalid):
        materialise(shop.objects, shop.trees, image, volume)
    assert see(volume) == see(place / "from")


def test_a_parent_that_is_closed_to_us_is_refused_or_gone_around(
    shop: Any, place: Path, work: Callable[..., Any], see: Eye
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
    refused = work("materialise", oid, parent / "to", uid=65534)
    assert refused.value["kind"] == "not_permitted"
    done = work("materialise", oid, parent / "mine", uid=65534)
    assert done.code == 0, done.text
    assert done.value["again"] == oid
    assert see(parent / "mine") == see(place / "from")


# kill -9


FAULTS = [
    "build.directories",
    "build.files",
    "build.links",
    "materialise.built",
    "stage.renamed",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_killed_restore_leaves_at_most_a_stage_that_the_next_removes(
    shop: Any, place: Path, torture: Torture, *, see: Eye, work: Callable[..., Any], fault: str
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "room").mkdir()
    done = work("materialise", oid, place / "room" / "to", fault=f"{fault}:kill")
    assert done.code == -signal.SIGKILL
    left = _names(place / "room")
    if fault == "stage.renamed":
        assert left == ["to"]
    else:
        assert len(left) == 1
        assert left[0].startswith(".ortet.stage.")
        assert work("materialise", oid, place / "room" / "to").code == 0
    assert _names(place / "room") == ["to"]
    assert see(place / "room" / "to") == see(place / "from")


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_killed_restore_into_a_mount_is_cleaned_too(
    shop: Any,
    place: Path,
    mount: Callable[..., Path],
    *,
    torture: Torture,
    see: Eye,
    work: Callable[..., Any],
    count: int,
) -> None:
    torture(place / "from")
    oid = shop.put(shop.freeze(place / "from"))
    shop.objects.close()
    (place / "volume").mkdir()
    volume = mount("bound", "--bind", str(place / "volume"))
    done = work("materialise", oid, volume, fault=f"stage.moved:kill:{count}")
    assert done.code == -signal.SIGKILL
    assert len(_names(volume)) > count
    assert work("materialise", oid, volume).code == 0
    assert see(volume) == see(place / "from")


def test_two_at_once_do_not_disturb_one_another(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    (place / "from" / "f").write_text("x")
    image = shop.freeze(place / "from")
    with Stage(place / "to"):
        with pytest.raises(Conflict) as error:
            materialise(shop.objects, shop.trees, image, place / "to")
        assert error.value.kind == "restore_running"
        assert len([n for n in _names(place) if n.startswith(".ortet.stage.")]) == 1
    outcomes: list[str] = []

    def restore() -> None:
        try:
            materialise(shop.objects, shop.trees, image, place / "to")
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


# cloning


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_unchanged_files_are_cloned_where_the_file_system_can(
    shop: Any, place: Path, mount: Callable[..., Path], see: Eye, kind: str
) -> None:
    disk = place / "disk"
    with disk.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(disk)], check=True)
    top = mount("m", "-o", "loop", str(disk))
    live = top / "live"
    live.mkdir()
    for number in range(8):
        (live / f"f{number}").write_bytes(os.urandom(8 << 20))
    (live / "small").write_text("small")
    index = shop.index()
    image = shop.freeze(live, index)
    (live / "f7").write_bytes(b"changed since")
    os.sync()
    free = os.statvfs(top).f_bavail * os.statvfs(top).f_bsize
    other = shop.index()
    report = materialise(
        shop.objects, shop.trees, image, top / "to", index=other, source=(live, index)
    )
    os.sync()
    used = free - os.statvfs(top).f_bavail * os.statvfs(top).f_bsize
    assert report.losses == []
    assert used < 24 << 20  # f7 was copied, the other 56 MiB are shared
    assert shop.freeze(top / "to", other) == image
    assert shop.freeze(top / "to") == image
    assert (live / "f7").read_bytes() == b"changed since"


def test_a_file_system_that_cannot_clone_copies(
    shop: Any, place: Path, torture: Torture, see: Eye
) -> None:
    torture(place / "from")
    index = shop.index()
    image = shop.freeze(place / "from", index)
    (place / "from" / "plain").write_text("changed since")
    (place / "from" / "exact").unlink()
    report = materialise(
        shop.objects, shop.trees, image, place / "to", source=(place / "from", index)
    )
    assert report.losses == []
    assert shop.freeze(place / "to") == image


def test_progress_counts_up_to_the_end(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    for number in range(300):
        (place / "from" / str(number)).write_text(str(number))
    image = shop.freeze(place / "from")
    seen: list[tuple[int, int]] = []
    materialise(
        shop.objects,
        shop.trees,
        image,
        place / "to",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (301, 301)


def test_a_place_that_may_not_be_written_is_refused(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    image = shop.freeze(place / "from")
    with pytest.raises((Refused, Unavailable)):
        materialise(shop.objects, shop.trees, image, Path("/proc/ortet-test"))
