"""What a thaw through a merged view needs to know, made from trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.machines import Shop, read_tree

from ortet.errors import Conflict
from ortet.machines.overlay.layers.store import LayerStore
from ortet.machines.overlay.restore import count_written_and_removed, restore_through_overlay


@pytest.fixture
def tree(place: Path) -> Path:
    tree = place / "tree"
    (tree / "gone/deep").mkdir(parents=True)
    (tree / "gone/deep/file").write_text("deep")
    (tree / "gone/.ortetignore").write_text("*.log\n")
    (tree / "stays").write_text("stays")
    return tree


def test_restore_through_a_view_keeps_ignored_files(shop: Shop, place: Path, tree: Path) -> None:
    bases = LayerStore(shop.objects, shop.trees, place / "bases")
    (tree / "new").mkdir()
    target = shop.freeze(tree)
    shape = read_tree(tree)
    (tree / "new").rmdir()
    (tree / "gone/deep/file").write_text("changed")
    (tree / "more").mkdir()
    (tree / "more/x").write_text("x")
    (tree / "more/.ortetignore").write_text("y\n")
    (tree / "more/y").write_text("no state")
    (tree / "gone/deep/a.log").write_text("no state")
    current = shop.freeze(tree)
    report = restore_through_overlay(
        shop.objects,
        shop.trees,
        bases,
        view=tree,
        current=current,
        target=target,
        stage=place / "stage",
        paths=None,
    )
    assert report.written > 0
    assert (tree / "gone/deep/a.log").read_text() == "no state"
    assert (tree / "more/y").read_text() == "no state"
    assert not (tree / "more/x").exists()
    assert read_tree(tree)[b"gone/deep/file"] == shape[b"gone/deep/file"]


def test_a_file_saved_since_the_snapshot_is_not_overwritten(
    shop: Shop, place: Path, tree: Path
) -> None:
    bases = LayerStore(shop.objects, shop.trees, place / "bases")
    target = shop.freeze(tree)
    (tree / "gone/deep/file").unlink()
    current = shop.freeze(tree)
    (tree / "gone/deep/file").write_text("saved just now")
    with pytest.raises(Conflict):
        restore_through_overlay(
            shop.objects,
            shop.trees,
            bases,
            view=tree,
            current=current,
            target=target,
            stage=place / "stage",
            paths=None,
        )
    assert (tree / "gone/deep/file").read_text() == "saved just now"


def test_the_count_of_changes_includes_everything_below_a_directory(shop: Shop, tree: Path) -> None:
    before = shop.freeze(tree).root
    (tree / "stays").write_text("changed")
    for path in ("gone/deep/file", "gone/.ortetignore"):
        (tree / path).unlink()
    (tree / "gone/deep").rmdir()
    (tree / "gone").rmdir()
    (tree / "came/deep").mkdir(parents=True)
    after = shop.freeze(tree).root
    assert count_written_and_removed(shop.trees, before, after) == (3, 4)
    assert count_written_and_removed(shop.trees, after, after) == (0, 0)
