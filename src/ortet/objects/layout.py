"""The directory layout of a store: its FORMAT file, the paths of its parts, its space limits."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from threading import get_ident

import msgspec

from ortet._util.codec import FORMAT_VERSION, Hasher
from ortet.backends.base import Bucket
from ortet.errors import Invalid, Refused, Unsupported
from ortet.ids import Clock
from ortet.objects.pack import list_packs
from ortet.objects.tail import TAIL_SUFFIX, storage_error, sync_directory

_FORMAT_MAGIC = "ortet store"
_STORE_FILES = frozenset(
    {
        "FORMAT",
        "catalog.db",
        "catalog.db-wal",
        "catalog.db-shm",
        "catalog.db-journal",  # exists while another process creates the catalog
        "bucket",
        "local",
        "config.toml",
        "key",
    }
)
_RECOUNT_BYTES = 1024 * 1024
_RECOUNT_NS = 1_000_000_000
_AMPLE_FREE_BYTES = 64 * 1024 * 1024


class StoreLayout(msgspec.Struct, frozen=True):
    """The paths of the parts of an opened store."""

    path: Path
    local: Path
    tails: Path
    index: Path

    def tail_ids(self) -> list[str]:
        """Return the ids of all tail files, sorted."""
        names = os.listdir(self.tails)
        return sorted(
            name.removesuffix(TAIL_SUFFIX) for name in names if name.endswith(TAIL_SUFFIX)
        )

    def tail_path(self, id_: str) -> Path:
        """Return the path of a tail file."""
        return self.tails / f"{id_}{TAIL_SUFFIX}"


def open_layout(path: Path, hasher: Hasher) -> StoreLayout:
    """Check that `path` is a usable store. Initialise a missing or empty directory as a store.

    Raises:
        Invalid: kind "not_a_store": the directory holds something else.
        Unsupported: kind "newer_format": a newer Ortet made the store.
        Refused: kind "wrong_key": the store was made with another key.
    """
    file = path / "FORMAT"
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        _create_format_file(path, file, hasher)
        text = file.read_bytes()
    except NotADirectoryError:
        raise _not_a_store(path) from None
    _check_format(path, text, hasher)
    local = path / "local"
    root = StoreLayout(path, local, local / "tails", local / "index")
    root.tails.mkdir(parents=True, exist_ok=True)
    root.index.mkdir(exist_ok=True)
    return root


def check_directory(path: Path) -> None:
    """Raise Invalid if a directory holds something that is not part of a store."""
    if (path / "FORMAT").exists():
        return
    if any(
        name not in _STORE_FILES and not name.startswith("FORMAT.") for name in os.listdir(path)
    ):
        raise _not_a_store(path)


def _create_format_file(path: Path, file: Path, hasher: Hasher) -> None:
    part = path / f"FORMAT.{os.getpid()}.{get_ident()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_directory(path)
        part.write_text(f"{_FORMAT_MAGIC} {FORMAT_VERSION} {hasher.key_id.hex()}\n")
        with open(part, "rb") as opened:
            os.fsync(opened.fileno())
        # If another process created the file first, its key applies.
        with contextlib.suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
        sync_directory(path)
    except NotADirectoryError:
        raise _not_a_store(path) from None
    except OSError as error:
        raise storage_error(error, f"making a store at {path}") from error


def _check_format(path: Path, text: bytes, hasher: Hasher) -> None:
    words = text.decode(errors="replace").split()
    if len(words) < 4 or " ".join(words[:2]) != _FORMAT_MAGIC or not words[2].isdigit():
        raise _not_a_store(path)
    if int(words[2]) > FORMAT_VERSION:
        raise Unsupported(
            "newer_format",
            f"{path} has format {words[2]}, this ortet knows {FORMAT_VERSION}: upgrade ortet",
        )
    if words[3] != hasher.key_id.hex():
        raise Refused(
            "wrong_key",
            f"{path} was made with key {words[3]}, not {hasher.key_id.hex()}: give that key",
        )


def _not_a_store(path: Path) -> Invalid:
    return Invalid(
        "not_a_store", f"{path} is not an ortet store: give another path, or an empty one"
    )


class SpaceGuard:
    """Refuses writes that would exceed the quota or use up the reserved disk space."""

    def __init__(
        self, layout: StoreLayout, bucket: Bucket, *, clock: Clock, quota: int | None, reserve: int
    ) -> None:
        self._layout = layout
        self._bucket = bucket
        self._clock = clock
        self._quota = quota
        self._reserve = reserve
        self._path = os.fspath(layout.path)
        self._free_bytes = 0
        self._used_bytes = 0
        self._bytes_since_count = 0
        self._counted_at_ns = 0

    def used_bytes(self) -> int:
        """Return the total size of all packs and tails."""
        tails: dict[str, int] = {}
        for id_ in self._layout.tail_ids():
            with contextlib.suppress(FileNotFoundError):
                tails[id_] = self._layout.tail_path(id_).stat().st_size
        # List packs after tails. A tail that is being sealed is in both lists under one id and
        # counts once.
        return sum((tails | list_packs(self._bucket)).values())

    def has_ample_space(self) -> bool:
        """Return True if there is space to preallocate the end of a tail."""
        return self._quota is None and self._free_bytes > _AMPLE_FREE_BYTES

    def check(self, size: int) -> None:
        """Raise Refused("quota") or Refused("disk_reserve") if `size` more bytes do not fit."""
        if self._quota is not None:
            self._check_quota(self._quota, size)
        try:
            disk = os.statvfs(self._path)
        except OSError as error:
            raise storage_error(error, f"looking at {self._path}") from error
        self._free_bytes = disk.f_bavail * disk.f_frsize - self._reserve - size
        if self._reserve and self._free_bytes < 0:
            raise Refused(
                "disk_reserve",
                f"less than {self._reserve} bytes would be left free at {self._path}: "
                "make some space, sweep the store, or lower the reserve",
            )
        self._bytes_since_count += size

    def _check_quota(self, quota: int, size: int) -> None:
        now = self._clock.now_ns()
        close = self._used_bytes + self._bytes_since_count + size > quota - quota // 8
        # Other processes write too. A count is reused for at most one second and one megabyte, and
        # only while usage is far from the quota.
        if (
            close
            or self._bytes_since_count > _RECOUNT_BYTES
            or not 0 <= now - self._counted_at_ns < _RECOUNT_NS
        ):
            self._used_bytes, self._bytes_since_count, self._counted_at_ns = (
                self.used_bytes(),
                0,
                now,
            )
        if self._used_bytes + self._bytes_since_count + size > quota:
            raise Refused(
                "quota",
                f"the store has {self._used_bytes + self._bytes_since_count} of {quota} bytes and "
                f"needs {size} more: "
                "sweep it, drop branches, or raise the quota",
            )
