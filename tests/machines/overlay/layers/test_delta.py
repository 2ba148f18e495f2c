"""The difference of two images as a layer: mounted over the one, it shows the other."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.machines import Shop
from tests.machines.overlays import Overlay, disturb, remove_tree

from ortet._util.codec import decode
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.overlay.layers.store import (
    count_changes,
    hardlinked_items,
    layer_items,
    write_layer,
)
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.restore.checkout import checkout_image
from ortet.machines.restore.plan import ImageFiles

pytestmark = pytest.mark.overlay


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


def test_distance_counts_names_and_stops(shop: Shop, place: Path) -> None:
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


def test_carried_lists_hardlinked_files_and_their_parent_directories(
    shop: Shop, place: Path
) -> None:
    tree = place / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/one").write_text("linked")
    (tree / "two").hardlink_to(tree / "a/b/one")
    (tree / "alone").write_text("x")
    items, groups = hardlinked_items(shop.trees, side(shop, shop.freeze(tree)))
    assert [item.path for item in items] == [b"", b"a", b"a/b", b"a/b/one", b"two"]
    assert groups == [[b"a/b/one", b"two"]]
