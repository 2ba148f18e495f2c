"""Layers: found, made near others, shared, checked after a restart of the host, and pruned."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.machines import Shop, read_tree
from tests.machines.overlays import Overlay, disturb, remove_tree

from ortet._util.codec import decode
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.overlay.layers import store as module
from ortet.machines.overlay.layers.store import (
    LayerStack,
    LayerStore,
    count_changes,
    hardlinked_items,
    layer_items,
    write_layer,
)
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.restore.checkout import checkout_image
from ortet.machines.restore.compare_images import ImageFiles


@pytest.fixture
def tree(place: Path) -> Path:
    tree = place / "tree"
    (tree / "dir").mkdir(parents=True)
    for number in range(30):
        (tree / f"dir/{number}").write_text(str(number))
    (tree / "file").write_text("file")
    return tree


def stacked(bases: LayerStore, image: Image, near: LayerStack | None = None) -> LayerStack:
    with bases.prevent_prune():
        stack, losses = bases.ensure_stack(image, near)
    assert losses == []
    return stack


def test_a_base_is_the_workspace_written_once(shop: Shop, bases: LayerStore, tree: Path) -> None:
    image = shop.freeze(tree)
    stack = stacked(bases, image)
    assert len(stack.layers) == 1
    assert read_tree(bases.root / stack.layers[0]) == read_tree(tree)
    made = (bases.root / stack.layers[0]).stat().st_ino
    assert stacked(bases, image) == stack
    assert (bases.root / stack.layers[0]).stat().st_ino == made


def test_a_later_state_is_a_difference(shop: Shop, bases: LayerStore, tree: Path) -> None:
    first = stacked(bases, shop.freeze(tree))
    (tree / "dir/3").write_text("changed")
    (tree / "dir/4").unlink()
    later = stacked(bases, shop.freeze(tree), first)
    assert later.layers[1:] == first.layers
    names = sorted(path.name for path in (bases.root / later.layers[0] / "dir").iterdir())
    assert names == ["3", "4"]
    assert (bases.root / later.layers[0] / "dir/4").lstat().st_rdev == 0


def test_another_process_finds_an_existing_layer(shop: Shop, bases: LayerStore, tree: Path) -> None:
    image = shop.freeze(tree)
    other = LayerStore(shop.objects, shop.trees, bases.root)
    assert other.is_complete(stacked(bases, image))
    assert stacked(other, image) == stacked(bases, image)


def test_an_image_with_many_differences_is_written_as_a_whole_layer(
    shop: Shop, bases: LayerStore, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DELTA_NAMES", 5)
    first = stacked(bases, shop.freeze(tree))
    for number in range(9):
        (tree / f"dir/{number}").write_text("changed")
    assert len(stacked(bases, shop.freeze(tree), first).layers) == 1


def test_a_deep_stack_is_flattened(shop: Shop, bases: LayerStore, tree: Path) -> None:
    stack = stacked(bases, shop.freeze(tree))
    for number in range(12):
        (tree / "file").write_text(f"change {number}")
        stack = stacked(bases, shop.freeze(tree), stack)
        assert len(stack.layers) <= module.MAX_STACK_DEPTH
    assert (bases.root / stack.layers[0] / "file").read_text() == "change 11"


class TestAfterARestartOfTheHost:
    def again(self, shop: Shop, bases: LayerStore) -> LayerStore:
        bases = LayerStore(shop.objects, shop.trees, bases.root)
        bases.boot = "another"
        return bases

    def test_intact_layers_are_reused_after_a_host_restart(
        self, shop: Shop, bases: LayerStore, tree: Path
    ) -> None:
        first = stacked(bases, shop.freeze(tree))
        (tree / "file").write_text("later")
        image = shop.freeze(tree)
        stack = stacked(bases, image, first)
        made = [(bases.root / name).stat().st_ino for name in stack.layers]
        again = self.again(shop, bases)
        assert stacked(again, image) == stack
        assert [(bases.root / name).stat().st_ino for name in stack.layers] == made

    def test_a_truncated_layer_file_is_noticed(
        self, shop: Shop, bases: LayerStore, tree: Path
    ) -> None:
        image = shop.freeze(tree)
        stack = stacked(bases, image)
        os.truncate(bases.root / stack.layers[0] / "dir/7", 0)
        again = self.again(shop, bases)
        assert not again.is_complete(stack)
        new = stacked(again, image)
        assert read_tree(again.root / new.layers[0]) == read_tree(tree)

    def test_a_damaged_difference_is_noticed(
        self, shop: Shop, bases: LayerStore, tree: Path
    ) -> None:
        first = stacked(bases, shop.freeze(tree))
        (tree / "file").write_text("later")
        image = shop.freeze(tree)
        stack = stacked(bases, image, first)
        (bases.root / stack.layers[0] / "file").write_text("wrong")
        again = self.again(shop, bases)
        assert again.is_complete(first)
        assert not again.is_complete(stack)
        new = stacked(again, image)
        assert (again.root / new.layers[0] / "file").read_text() == "later"


def test_a_layer_left_by_a_killed_build_is_not_used(
    shop: Shop, bases: LayerStore, tree: Path
) -> None:
    image = shop.freeze(tree)
    stack = stacked(bases, image)
    (bases.root / f"{stack.layers[0]}.layer").unlink()  # killed before the last step
    (bases.root / stack.layers[0] / "file").write_text("half")
    again = LayerStore(shop.objects, shop.trees, bases.root)
    assert stacked(again, image) == stack
    assert read_tree(again.root / stack.layers[0]) == read_tree(tree)


def test_prune_keeps_the_layers_that_are_still_referenced(
    shop: Shop, bases: LayerStore, tree: Path
) -> None:
    first = stacked(bases, shop.freeze(tree))
    (tree / "file").write_text("later")
    later = stacked(bases, shop.freeze(tree), first)
    assert bases.prune(lambda: later.layers) == 0
    assert bases.prune(lambda: first.layers) == 1
    assert bases.is_complete(first) and not bases.is_complete(later)
    assert bases.prune(list) == 1
    assert not bases.is_complete(first)


def test_an_adopted_upper_directory_becomes_a_layer_and_can_be_returned(
    shop: Shop, bases: LayerStore, tree: Path, place: Path
) -> None:
    first = stacked(bases, shop.freeze(tree))
    upper = place / "upper"
    upper.mkdir()
    (upper / "file").write_text("later")
    (tree / "file").write_text("later")
    image = shop.freeze(tree)
    stack = bases.adopt(upper, "machine-1", below=first, image=image, shared=True)
    assert not upper.exists()
    assert stack.layers == ["machine-1", *first.layers]
    assert stacked(bases, image) == stack
    bases.undo_adopt("machine-1", upper)
    assert (upper / "file").read_text() == "later"
    assert bases.load_stack("machine-1") is None


def test_an_unshared_layer_is_not_found_by_its_image(
    shop: Shop, bases: LayerStore, tree: Path, place: Path
) -> None:
    first = stacked(bases, shop.freeze(tree))
    upper = place / "upper"
    upper.mkdir()
    (tree / "file").write_text("later")
    image = shop.freeze(tree)
    own = bases.adopt(upper, "machine-1", below=first, image=image, shared=False)
    assert bases.load_stack("machine-1") == own
    assert stacked(bases, image) != own
    assert bases.image_files(image) == ImageFiles(image.root, [])


def side(shop: Shop, image: Image) -> ImageFiles:
    links = decode(list[list[bytes]], shop.objects.get(Oid(image.links))) if image.links else []
    return ImageFiles(image.root, links)


def layered(shop: Shop, zygote: Zygote, base: Path, old: Image, new: Image) -> Image:
    """What an overlay of the difference over `old` shows."""
    checkout_image(shop.objects, shop.trees, old, base / "lower")
    (base / "delta").mkdir()
    items, groups = layer_items(shop.trees, side(shop, old), side(shop, new))
    assert write_layer(shop.objects, base / "delta", items, groups) == []
    overlay = Overlay(zygote, base, ["delta", "lower"])
    try:
        return shop.freeze(overlay.view)
    finally:
        overlay.machine.close()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**9))
@pytest.mark.overlay
@pytest.mark.slow
def test_a_delta_layer_over_one_image_shows_the_other_image(
    seed: int, shop: Shop, zygote: Zygote, place: Path
) -> None:
    dice = random.Random(seed)
    base = place / "any"
    (base / "tree").mkdir(parents=True)
    disturb(base / "tree", dice, 40)
    old = shop.freeze(base / "tree")
    disturb(base / "tree", dice, 25)
    new = shop.freeze(base / "tree")
    try:
        assert layered(shop, zygote, base, old, new) == new
    finally:
        remove_tree(base)


def split(tree: Path) -> None:
    """The same content, but no longer one file."""
    twin = tree / "dir/twin"
    data, now = twin.read_bytes(), twin.stat()
    twin.unlink()
    twin.write_bytes(data)
    os.utime(twin, ns=(now.st_mtime_ns, now.st_mtime_ns))
    times = tree / "dir"
    os.utime(times, ns=(5, 5))


def join(tree: Path) -> None:
    (tree / "third").unlink()
    (tree / "third").hardlink_to(tree / "one")


def through(tree: Path) -> None:
    (tree / "dir/twin").write_text("through one name")


@pytest.mark.overlay
@pytest.mark.parametrize("change", [split, join, through])
def test_hardlinks_are_in_one_layer(
    change: Callable[[Path], None], shop: Shop, zygote: Zygote, place: Path
) -> None:
    tree = place / "base/tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "one").write_text("linked")
    (tree / "third").write_text("linked")
    (tree / "dir/twin").hardlink_to(tree / "one")
    os.utime(tree / "dir", ns=(5, 5))
    old = shop.freeze(tree)
    change(tree)
    new = shop.freeze(tree)
    assert layered(shop, zygote, place / "base", old, new) == new


@pytest.mark.overlay
def test_count_changes_counts_names_up_to_the_limit(shop: Shop, place: Path) -> None:
    tree = place / "tree"
    tree.mkdir()
    empty = shop.freeze(tree).root
    (tree / "d/e").mkdir(parents=True)
    for number in range(50):
        (tree / f"d/e/{number}").write_text("x")
    full = shop.freeze(tree).root
    assert count_changes(shop.trees, empty, full, limit=1000) == 52
    assert count_changes(shop.trees, full, empty, limit=1000) == 1
    assert count_changes(shop.trees, full, full, limit=1000) == 0
    assert 10 < count_changes(shop.trees, empty, full, limit=10) < 20


@pytest.mark.overlay
def test_hardlinked_items_lists_linked_files_and_their_parents(shop: Shop, place: Path) -> None:
    tree = place / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/one").write_text("linked")
    (tree / "two").hardlink_to(tree / "a/b/one")
    (tree / "alone").write_text("x")
    items, groups = hardlinked_items(shop.trees, side(shop, shop.freeze(tree)))
    assert [item.path for item in items] == [b"", b"a", b"a/b", b"a/b/one", b"two"]
    assert groups == [[b"a/b/one", b"two"]]
