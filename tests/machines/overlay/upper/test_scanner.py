"""What an upper directory says, against a full scan of the merged view."""

from __future__ import annotations

import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.machines import Shop
from tests.machines.overlays import Overlay, disturb, remove_tree

from ortet._util.codec import decode, encode
from ortet.history.records import Image, TreeEntry
from ortet.ids import Oid
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.overlay.upper.scanner import UpperScanner
from ortet.machines.standalone.syscalls import is_privileged
from ortet.objects.base import Kind

pytestmark = pytest.mark.overlay


class Pair:
    """An overlay over a lower directory, with an Upper that looks at it."""

    def __init__(self, shop: Shop, zygote: Zygote, base: Path, lowers: list[str]) -> None:
        self.shop = shop
        self.overlay = Overlay(zygote, base, lowers)
        self.view = self.overlay.view

    def rest_on(self, below: Image) -> None:
        self.below = below
        self.upper = UpperScanner(
            self.shop.objects,
            self.shop.trees,
            self.overlay.upper,
            below=below.root,
            is_root=is_privileged(),
            view=os.fsencode(self.view),
        )

    def told(self) -> Image:
        """By the upper directory, and what the kernel says of it."""
        root = self.upper.scan(quiet=True)
        objects = self.shop.objects
        groups = []
        if self.below.links:
            groups = decode(list[list[bytes]], objects.get(Oid(self.below.links)))
        found = self.upper.hardlink_groups(groups)
        return Image(root, objects.put(Kind.META, encode(found)) if found else b"")

    def seen(self) -> Image:
        """By reading everything."""
        return self.shop.freeze(self.view)

    def agree(self) -> bool:
        """Without root the kernel gives each name of a file its own inode number in the view."""
        told, seen = self.told(), self.seen()
        return told == seen if is_privileged() else told.root == seen.root

    def close(self) -> None:
        self.upper.close()
        self.overlay.machine.close()


Make = Callable[[Callable[[Path], None]], Pair]


@pytest.fixture
def make(shop: Shop, zygote: Zygote, place: Path) -> Iterator[Make]:
    pairs: list[Pair] = []

    def pair(fill: Callable[[Path], None]) -> Pair:
        base = place / f"pair{len(pairs)}"
        (base / "lower").mkdir(parents=True)
        fill(base / "lower")
        below = shop.freeze(base / "lower")
        pairs.append(Pair(shop, zygote, base, ["lower"]))
        pairs[-1].rest_on(below)
        return pairs[-1]

    yield pair
    for one in pairs:
        one.close()


def fill(lower: Path) -> None:
    (lower / "dir/deep/er").mkdir(parents=True)
    (lower / "dir/one").write_text("one")
    (lower / "dir/deep/two").write_text("two")
    (lower / "dir/deep/er/three").write_text("three")
    (lower / "big").write_bytes(os.urandom(600_000))
    (lower / "file").write_text("file")
    (lower / "link").symlink_to("file")
    (lower / "empty").mkdir()


def replace_directory(view: Path) -> None:
    shutil.rmtree(view / "dir")
    (view / "dir").mkdir()
    (view / "dir/new").write_text("new")


def swap_types(view: Path) -> None:
    (view / "file").unlink()
    (view / "file").mkdir()
    (view / "file/in").write_text("in")
    shutil.rmtree(view / "dir")
    (view / "dir").write_text("a file now")
    (view / "link").unlink()
    os.mkfifo(view / "link")


def rename_twice(view: Path) -> None:
    (view / "dir").rename(view / "moved")
    (view / "moved/deep").rename(view / "deep")
    (view / "deep/er/three").write_text("changed after two renames")
    (view / "moved").rename(view / "empty/moved")


def move_away_and_back(view: Path) -> None:
    (view / "dir").rename(view / "x")
    (view / "x").rename(view / "dir")


def only_metadata(view: Path) -> None:
    (view / "big").chmod(0o4711)
    os.utime(view / "file", ns=(0, 7))
    os.setxattr(view / "dir", "user.note", b"here")
    os.utime(view / "link", ns=(0, 9), follow_symlinks=False)
    os.chown(view / "dir/one", 12, 34)


def rename_what_only_changed_mode(view: Path) -> None:
    """The file's content stays below, under its old name."""
    (view / "big").chmod(0o600)
    (view / "big").rename(view / "dir/large")


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda view: view,
    "whiteout": lambda view: (view / "file").unlink(),
    "whiteout of a directory": lambda view: shutil.rmtree(view / "dir/deep"),
    "opaque": replace_directory,
    "other types": swap_types,
    "rename": lambda view: (view / "dir").rename(view / "moved"),
    "renames": rename_twice,
    "rename and back": move_away_and_back,
    "metadata": only_metadata,
    "metacopy renamed": rename_what_only_changed_mode,
    "truncation": lambda view: os.truncate(view / "big", 1000),
    "new and nested": lambda view: (view / "n/e/w").mkdir(parents=True),
    "copy-up alone": lambda view: (view / "file").open("r+").close(),
    "new link": lambda view: (view / "other").hardlink_to(view / "file"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_upper_directory_shows_each_kind_of_change(name: str, make: Make) -> None:
    pair = make(fill)
    before = pair.told()
    assert before == pair.below
    CHANGES[name](pair.view)
    after = pair.told()
    assert after == pair.seen()
    assert (after == before) == (name in ("nothing", "copy-up alone"))
    assert pair.told() == after


def test_a_renamed_directory_copies_nothing(make: Make) -> None:
    pair = make(fill)
    (pair.view / "dir").rename(pair.view / "moved")
    assert list((pair.overlay.upper / "moved").iterdir()) == []
    found = pair.shop.trees.resolve(pair.told().root, b"moved/deep/er/three")
    assert found is not None and found.size == 5


def test_a_chmod_copies_no_content(make: Make) -> None:
    pair = make(fill)
    (pair.view / "big").chmod(0o640)
    assert (pair.overlay.upper / "big").stat().st_blocks < 100
    entry, was = (pair.shop.trees.resolve(i.root, b"big") for i in (pair.told(), pair.below))
    assert entry is not None and was is not None
    assert (entry.data, entry.mode & 0o777) == (was.data, 0o640)


def test_renames_across_stacked_layers_are_followed(
    shop: Shop, zygote: Zygote, place: Path, make: Make
) -> None:
    """A frozen upper directory as the middle layer: its marks are followed by the kernel and us."""
    pair = make(fill)
    rename_twice(pair.view)
    (pair.view / "big").chmod(0o600)
    middle = pair.told()
    pair.overlay.freeze_upper("middle")
    again = Pair(shop, zygote, pair.overlay.base, ["middle", "lower"])
    again.rest_on(middle)
    assert again.told() == again.seen() == middle
    (again.view / "empty/moved").rename(again.view / "dir")
    (again.view / "dir/one").write_text("third layer")
    (again.view / "big").rename(again.view / "deep/big")
    assert again.told() == again.seen() != middle
    again.close()


def test_files_written_through_a_memory_mapping_are_seen_in_the_upper(make: Make) -> None:
    """A second store to a page moves no time by itself; told that it is mapped, we see it."""
    pair = make(fill)
    with (pair.view / "big").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0:5] = b"first"
        mapped = {b"": {"big"}}
        one = pair.upper.scan(mapped)
        memory[0:5] = b"later"
        two = pair.upper.scan(mapped)
        assert one != two
    assert two == pair.seen().root


def test_ignored_files_in_the_upper_directory_are_not_part_of_the_state(make: Make) -> None:
    def ignoring(lower: Path) -> None:
        fill(lower)
        (lower / ".ortetignore").write_text("*.log\n/cache/\nsize > 1KB *.bin\n")

    pair = make(ignoring)
    pair.told()
    assert not pair.upper.has_ignored_files
    (pair.view / "a.log").write_text("log")
    (pair.view / "cache").mkdir()
    (pair.view / "cache/x").write_text("x")
    (pair.view / "dir/y.bin").write_bytes(b"y" * 2000)
    assert pair.told() == pair.seen()
    assert pair.upper.has_ignored_files and not pair.upper.has_changed_rules
    assert [(loss.path, loss.what) for loss in pair.upper.losses] == [("dir/y.bin", "size")]
    pair.told()
    assert len(pair.upper.losses) == 1


def test_a_changed_ignore_file_needs_a_full_scan(make: Make) -> None:
    pair = make(fill)
    (pair.view / "dir/.ortetignore").write_text("one\n")
    pair.told()
    assert pair.upper.has_changed_rules
    (pair.view / "dir/.ortetignore").unlink()
    assert pair.told() == pair.seen()
    assert not pair.upper.has_changed_rules
    (pair.view / "fresh").mkdir()
    (pair.view / "fresh/.ortetignore").write_text("x\n")
    (pair.view / "fresh/x").write_text("x")
    assert pair.told() == pair.seen()
    assert not pair.upper.has_changed_rules


def test_a_racy_file_is_read_again(make: Make) -> None:
    pair = make(fill)
    pair.upper.horizon = 0  # every change may have been made after we looked
    (pair.view / "file").write_text("one")
    one = pair.told()
    # as a coarse clock would leave it: other content, the same times
    upper = pair.overlay.upper / "file"
    times = upper.stat()
    upper.write_text("two")
    os.utime(upper, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert pair.told() == pair.seen() != one


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
def test_the_upper_scan_agrees_with_a_full_scan_after_any_changes(
    seed: int, shop: Shop, zygote: Zygote, place: Path
) -> None:
    base = place / "any"
    (base / "lower").mkdir(parents=True)
    dice = random.Random(seed)
    disturb(base / "lower", dice, 40)
    below = shop.freeze(base / "lower")
    pair = Pair(shop, zygote, base, ["lower"])
    pair.rest_on(below)
    try:
        for _ in range(5):
            assert pair.agree()
            disturb(pair.view, dice, dice.choice([1, 3, 15]))
        assert pair.agree()
        told = pair.told()
        anew = UpperScanner(
            shop.objects, shop.trees, pair.overlay.upper, below=below.root, is_root=is_privileged()
        )
        assert anew.scan() == told.root
        anew.close()
    finally:
        pair.close()
        remove_tree(base)


def test_a_changed_file_is_found_in_the_scanned_tree_with_its_size(make: Make) -> None:
    pair = make(fill)
    (pair.view / "dir/deep/two").write_text("changed")
    root: TreeEntry = pair.told().root
    found = pair.shop.trees.resolve(root, b"dir/deep/two")
    assert found is not None and found.size == 7
