"""Sharing content with a live directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.machines.restore.checkout import checkout_image

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


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
