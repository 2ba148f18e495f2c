"""File systems made for a measurement, on loop devices."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measure

ROOM = 8 << 30
OPTIONS = {"ext4": ("-F", "-E", "lazy_itable_init=0,lazy_journal_init=0")}


@contextmanager
def loop_device(place: Path, kind: str, size: int) -> Iterator[Path]:
    """A file system of its own on a loop device; unmounted and removed whatever happens."""
    image, mount = place / f"{kind}.img", place / f"{kind}-mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    try:
        measure.command([f"mkfs.{kind}", "-q", *OPTIONS.get(kind, ()), str(image)])
        measure.command(["mount", "-o", "loop", str(image), str(mount)])
        try:
            yield mount
        finally:
            subprocess.run(["umount", str(mount)], check=False)
            if mount.is_mount():
                subprocess.run(["umount", "-l", str(mount)], check=True)
    finally:
        image.unlink()
        mount.rmdir()


@contextmanager
def fresh(place: Path) -> Iterator[Path]:
    """An empty ext4 with a journal to restore into.

    One without a journal, as some virtual machines have, passes over every inode that was freed in
    the last minutes when it makes a file: whoever restores after another was removed would pay.
    """
    with loop_device(place, "ext4", ROOM) as mount:
        yield mount
