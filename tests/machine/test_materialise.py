"""Whole images into new directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortet.machine.materialise import materialise


def test_everything_comes_back_identical(
    shop: Any, place: Path, torture: Callable[[Path], None], see: Callable[[Path], Any]
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
