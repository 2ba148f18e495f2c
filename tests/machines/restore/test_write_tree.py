"""Many entries below one directory: malicious ones never lead outside."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet._util.codec import encode
from ortet.errors import Corrupt, Invalid, Unavailable
from ortet.history.records import Image, TreeEntry, TreePage
from ortet.machines.restore.checkout import checkout_image
from ortet.objects.base import Kind
from ortet.objects.blobs import put_bytes

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def _image(shop: Any, entries: list[TreeEntry], links: object = None) -> Image:
    """An image with exactly these entries, past every check of the layers above."""
    oid = shop.objects.put(Kind.TREE, encode(TreePage(0, entries)))
    root = TreeEntry(b"", stat.S_IFDIR | 0o755, 0, data=oid, cid=oid)
    return Image(root, b"" if links is None else shop.objects.put(Kind.META, encode(links)))


def _plain(shop: Any, name: bytes) -> TreeEntry:
    data = put_bytes(shop.objects, b"evil")
    return TreeEntry(name, stat.S_IFREG | 0o644, 0, size=4, data=data)


@pytest.mark.parametrize(
    "name", [b"../evil", b"..", b".", b"", b"/evil", b"a/b", b"link/evil", b"a\0b"]
)
@pytest.mark.parametrize("kind", ["file", "directory", "link", "node"])
def test_restored_names_never_lead_outside_the_directory(
    shop: Any, place: Path, name: bytes, kind: str
) -> None:
    entry = {
        "file": _plain(shop, name),
        "directory": TreeEntry(
            name, stat.S_IFDIR | 0o755, 0, data=_image(shop, [_plain(shop, b"x")]).root.data
        ),
        "link": TreeEntry(name, stat.S_IFLNK | 0o777, 0, data=b"/etc"),
        "node": TreeEntry(name, stat.S_IFIFO | 0o644, 0),
    }[kind]
    link = TreeEntry(b"link", stat.S_IFLNK | 0o777, 0, data=b"..")
    (place / "room").mkdir()
    with pytest.raises((Corrupt, Unavailable)):
        checkout_image(shop.objects, shop.trees, _image(shop, [link, entry]), place / "room" / "to")
    assert _names(place) == ["room", "store"]
    assert _names(place / "room") == []


def test_a_link_and_a_directory_of_one_name_do_not_lead_outside(shop: Any, place: Path) -> None:
    (place / "outside").mkdir()
    inner = _image(shop, [_plain(shop, b"evil")]).root.data
    entries = [
        TreeEntry(b"d", stat.S_IFLNK | 0o777, 0, data=os.fsencode(place / "outside")),
        TreeEntry(b"d", stat.S_IFDIR | 0o755, 0, data=inner),
    ]
    for both in (entries, entries[::-1]):
        with pytest.raises((Corrupt, Unavailable, Invalid)) as error:
            checkout_image(shop.objects, shop.trees, _image(shop, both), place / "to")
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
def test_impossible_hardlink_groups_are_corrupt(
    shop: Any, place: Path, links: list[list[bytes]]
) -> None:
    (place / "outside").write_text("mine")
    other = TreeEntry(b"other", stat.S_IFREG | 0o600, 0)
    directory = TreeEntry(b"d", stat.S_IFDIR | 0o755, 0, data=shop.trees.empty().oid)
    entries = [_plain(shop, n) for n in (b"a", b"b", b"c")] + [directory, other]
    with pytest.raises(Corrupt) as error:
        checkout_image(shop.objects, shop.trees, _image(shop, entries, links), place / "to")
    assert error.value.kind == "bad_links"
    assert os.stat(place / "outside").st_nlink == 1
    assert _names(place) == ["outside", "store"]


def test_progress_counts_up_to_the_end(shop: Any, place: Path) -> None:
    (place / "from").mkdir()
    for number in range(300):
        (place / "from" / str(number)).write_text(str(number))
    image = shop.freeze(place / "from")
    seen: list[tuple[int, int]] = []
    checkout_image(
        shop.objects,
        shop.trees,
        image,
        place / "to",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (301, 301)


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
    report = checkout_image(
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
    report = checkout_image(
        shop.objects, shop.trees, image, place / "to", source=(place / "from", index)
    )
    assert report.losses == []
    assert shop.freeze(place / "to") == image
