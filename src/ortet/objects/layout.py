"""The directory of a store: what its FORMAT file says, where its parts are, and how full it may
get."""

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
from ortet.objects.tail import SUFFIX, storage_error, sync_directory

_WORDS = "ortet store"
_OURS = frozenset(
    {
        "FORMAT",
        "catalog.db",
        "catalog.db-wal",
        "catalog.db-shm",
        "catalog.db-journal",  # while another process makes the catalog
        "bucket",
        "local",
        "config.toml",
        "key",
    }
)
_RECOUNT_BYTES = 1024 * 1024
_RECOUNT_NS = 1_000_000_000
_AMPLE = 64 * 1024 * 1024


class Root(msgspec.Struct, frozen=True):
    """Where the parts of an opened store are."""

    path: Path
    local: Path
    tails: Path
    index: Path

    def tail_ids(self) -> list[str]:
        names = os.listdir(self.tails)
        return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))

    def tail(self, id_: str) -> Path:
        return self.tails / f"{id_}{SUFFIX}"


def open_root(path: Path, hasher: Hasher) -> Root:
    """Check that `path` is a store we can use, or make an empty or missing directory one."""
    file = path / "FORMAT"
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        _create(path, file, hasher)
        text = file.read_bytes()
    except NotADirectoryError:
        raise _not_a_store(path) from None
    _check(path, text, hasher)
    local = path / "local"
    root = Root(path, local, local / "tails", local / "index")
    root.tails.mkdir(parents=True, exist_ok=True)
    root.index.mkdir(exist_ok=True)
    return root


def check_place(path: Path) -> None:
    """Invalid when a directory holds something that is neither a store nor the start of one."""
    if (path / "FORMAT").exists():
        return
    if any(name not in _OURS and not name.startswith("FORMAT.") for name in os.listdir(path)):
        raise _not_a_store(path)


def _create(path: Path, file: Path, hasher: Hasher) -> None:
    part = path / f"FORMAT.{os.getpid()}.{get_ident()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_place(path)
        part.write_text(f"{_WORDS} {FORMAT_VERSION} {hasher.key_id.hex()}\n")
        with open(part, "rb") as opened:
            os.fsync(opened.fileno())
        with contextlib.suppress(
            FileExistsError
        ):  # another process made it first: its key is what counts
            os.link(part, file)
        part.unlink()
        sync_directory(path)
    except NotADirectoryError:
        raise _not_a_store(path) from None
    except OSError as error:
        raise storage_error(error, f"making a store at {path}") from error


def _check(path: Path, text: bytes, hasher: Hasher) -> None:
    words = text.decode(errors="replace").split()
    if len(words) < 4 or " ".join(words[:2]) != _WORDS or not words[2].isdigit():
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


class Space:
    """Says no before a write would pass the quota or eat the last of the disk."""

    def __init__(
        self, root: Root, bucket: Bucket, *, clock: Clock, quota: int | None, reserve: int
    ) -> None:
        self._root = root
        self._bucket = bucket
        self._clock = clock
        self._quota = quota
        self._reserve = reserve
        self._place = os.fspath(root.path)
        self._free = 0
        self._used = 0
        self._since = 0
        self._counted = 0

    def used(self) -> int:
        """Bytes of all packs and tails."""
        tails: dict[str, int] = {}
        for id_ in self._root.tail_ids():
            with contextlib.suppress(FileNotFoundError):
                tails[id_] = self._root.tail(id_).stat().st_size
        # Packs second: one that is being sealed has both names, and counts once.
        return sum((tails | list_packs(self._bucket)).values())

    def is_ample(self) -> bool:
        """Whether a tail may be a little longer than what is in it."""
        return self._quota is None and self._free > _AMPLE

    def check(self, size: int) -> None:
        """Refused("quota") or Refused("disk_reserve") when `size` more bytes are too many."""
        if self._quota is not None:
            self._check_quota(self._quota, size)
        try:
            disk = os.statvfs(self._place)
        except OSError as error:
            raise storage_error(error, f"looking at {self._place}") from error
        self._free = disk.f_bavail * disk.f_frsize - self._reserve - size
        if self._reserve and self._free < 0:
            raise Refused(
                "disk_reserve",
                f"less than {self._reserve} bytes would be left free at {self._place}: "
                "make some space, sweep the store, or lower the reserve",
            )
        self._since += size

    def _check_quota(self, quota: int, size: int) -> None:
        now = self._clock.now_ns()
        close = self._used + self._since + size > quota - quota // 8
        # Others write too: a count is good for a second, a megabyte, and far from the limit.
        if close or self._since > _RECOUNT_BYTES or not 0 <= now - self._counted < _RECOUNT_NS:
            self._used, self._since, self._counted = self.used(), 0, now
        if self._used + self._since + size > quota:
            raise Refused(
                "quota",
                f"the store has {self._used + self._since} of {quota} bytes and needs {size} more: "
                "sweep it, drop branches, or raise the quota",
            )
