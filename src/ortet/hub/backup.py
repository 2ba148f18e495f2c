"""Backup of an embedded store into a directory, while other processes write.

A backup is a store of its own. To restore, open it, or copy it to the place of the lost store. The
order of the steps makes it consistent, and keeps the backup of before whole if this one is killed:

1. The catalog is copied at one moment, by SQLite's online backup.
2. All packs, tails and archives are copied. They are a superset of what that catalog refers to,
   because a writer stores objects before it moves a head. Sweeps are kept out meanwhile.
3. The copy of the catalog gets its name. This is the moment when the new backup counts.
4. Files that the store does not have any more are deleted.

Packs and archives never change, so those that the directory holds are not copied again. What other
programs hold open does not go into a backup: leases, indexes (they are rebuilt), the homes of
private machines (commit their files first).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import checksum
from ortet._util.failpoints import failpoint
from ortet._util.structs import thread_safe_struct
from ortet.errors import Conflict, Corrupt, Invalid, OrtetError, Unavailable, Unsupported
from ortet.objects.tail import TAIL_SUFFIX, pack_key, storage_error, sync_directory

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

Progress = Callable[[int, int], None]

MANIFEST = "BACKUP"
_LOCK = "BACKUP.lock"
_PART = ".part"
_CATALOG = "catalog.db"
_SETTINGS = ("config.toml", "key", "local/secret", "local/catalog.log")
"""Small files of a store that a backup needs, if they exist."""
_CHUNK_BYTES = 8 << 20


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup says about itself, in the file BACKUP.

    Attributes:
        source: The directory of the store.
        time: When the catalog was copied, in ns.
        catalog: Checksum of the copied catalog, in hex; "" while the first backup is made.
        before: Checksum of the catalog that it replaces. A killed backup may have left that one.
    """

    source: str
    time: int
    catalog: str
    before: str = ""


class BackupReport(msgspec.Struct, frozen=True):
    """The result of a backup.

    Attributes:
        path: The directory of the backup.
        time: The moment that the backup shows, in ns.
        copied: Number of files that were copied.
        bytes: Their size.
        reused: Number of files that an earlier backup had copied.
        removed: Number of files that the store does not have any more.
    """

    path: str
    time: int
    copied: int
    bytes: int
    reused: int
    removed: int


def backup_store(
    store: StoreContext, target: Path, *, progress: Progress | None = None
) -> BackupReport:
    """Write a backup of a store, or bring an earlier one up to date; see `Maintenance.backup`."""
    if store.is_shared:
        raise Unsupported(
            "remote_store",
            "a backup needs a store in a directory of this host: for this one, back up the "
            "database and the bucket with their own tools",
        )
    target = Path(os.path.abspath(target))
    _check_target(store.root, target)
    with _translate_errors(target), _locked(target):
        before = _catalog_of_backup(target)
        with store.objects.sweep_lock.hold_gc_lock(exclusive=False):
            return _Backup(store, target, before, progress).run()


class _Backup:
    def __init__(
        self, store: StoreContext, target: Path, before: str, progress: Progress | None
    ) -> None:
        self._store = store
        self._target = target
        self._before = before
        self._progress = progress
        self._copied = self._bytes = self._reused = 0

    def run(self) -> BackupReport:
        store, target = self._store, self._target
        time = store.clock.now_ns()
        if not self._before:
            _write_manifest(target, BackupManifest(str(store.root), time, ""))
        part = target / (_CATALOG + _PART)
        store.catalog.copy_to(part)
        failpoint("backup.catalog-copied")
        kept = self._copy_objects()
        for name in _SETTINGS:
            self._copy_setting(name)
        failpoint("backup.objects-copied")
        _sync_file(part)
        _write_manifest(target, BackupManifest(str(store.root), time, _sum_of(part), self._before))
        for name in (f"{_CATALOG}-wal", f"{_CATALOG}-shm"):
            (target / name).unlink(missing_ok=True)
        os.replace(part, target / _CATALOG)
        sync_directory(target)
        failpoint("backup.catalog-in-place")
        # With FORMAT, the directory is a store: the catalog is there by now.
        _write_file(target / "FORMAT", (store.root / "FORMAT").read_bytes())
        removed = _remove_others(target, kept)
        return BackupReport(str(target), time, self._copied, self._bytes, self._reused, removed)

    def _copy_objects(self) -> set[str]:
        """Copy tails, packs and archives. Return their paths in the backup.

        Tails are listed first: one that is sealed meanwhile is then found as a pack.
        """
        store = self._store
        tails = sorted((store.root / "local" / "tails").glob(f"*{TAIL_SUFFIX}"))
        keys = [entry.key for entry in store.bucket.list()]
        kept: set[str] = set()
        for number, tail in enumerate(tails):
            with suppress(FileNotFoundError):
                self._copy(tail, f"local/tails/{tail.name}")
                kept.add(f"local/tails/{tail.name}")
                continue
            keys.append(pack_key(tail.name.removesuffix(TAIL_SUFFIX)))
            self._report(number, len(tails) + len(keys))
        for number, key in enumerate(dict.fromkeys(keys)):
            kept.add(f"bucket/{key}")
            source = store.bucket.local_path(key)
            if source is None:
                continue
            if self._has(f"bucket/{key}", source.stat().st_size):
                self._reused += 1
            else:
                self._copy(source, f"bucket/{key}")
            self._report(len(tails) + number + 1, len(tails) + len(keys))
        return kept

    def _copy_setting(self, name: str) -> None:
        source = self._store.root / name
        if source.is_file():
            self._copy(source, name)

    def _has(self, name: str, size: int) -> bool:
        try:
            return (self._target / name).stat().st_size == size
        except FileNotFoundError:
            return False

    def _copy(self, source: Path, name: str) -> None:
        target = self._target / name
        with open(source, "rb") as read:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = target.with_name(target.name + _PART)
            size = _copy_file(read.fileno(), part)
        os.replace(part, target)
        sync_directory(target.parent)
        self._copied += 1
        self._bytes += size

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(min(done, total), total)


def check_backup(target: Path) -> BackupManifest:
    """Return the manifest of a complete backup that nobody has changed.

    Raises:
        Invalid: "not_a_backup" if the directory holds none, or one that was never completed.
        Conflict: "backup_changed" if the backup was opened as a store and changed.
        Corrupt: "bad_backup" if its manifest cannot be read.
    """
    manifest = _read_manifest(target)
    if manifest is None or not (target / "FORMAT").exists():
        raise Invalid("not_a_backup", f"{target} is no complete backup: run `ortet backup` again")
    _catalog_of_backup(target)
    return manifest


def _read_manifest(target: Path) -> BackupManifest | None:
    try:
        data = (target / MANIFEST).read_bytes()
        return msgspec.json.decode(data, type=thread_safe_struct(BackupManifest))
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Corrupt(
            "bad_backup", f"{target / MANIFEST} is damaged: make a backup in another directory"
        ) from error


def _catalog_of_backup(target: Path) -> str:
    """Return the checksum of the catalog that an earlier backup left there, or ""."""
    manifest = _read_manifest(target)
    if not (target / "FORMAT").exists():
        if manifest is None and any(name != _LOCK for name in os.listdir(target)):
            raise Invalid("not_a_backup", f"{target} has other files: give an empty directory")
        return ""
    if manifest is None:
        raise Conflict(
            "not_a_backup", f"{target} is a store and no backup: choose another directory"
        )
    with suppress(FileNotFoundError):
        found = _sum_of(target / _CATALOG)
        if found in (manifest.catalog, manifest.before):
            return found
    raise Conflict(
        "backup_changed",
        f"{target} is not what the backup left there: it is damaged, or was opened as a store "
        "and has changed; keep it, and make backups in another directory",
    )


def _check_target(root: Path, target: Path) -> None:
    real, own = Path(os.path.realpath(target)), Path(os.path.realpath(root))
    if real == own or own in real.parents or real in own.parents:
        raise Invalid("bad_path", f"{target} is in the store: give a directory outside of {root}")


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of a backup directory, which is created."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(target / _LOCK, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                "backup_busy", f"another backup to {target} is running: repeat when it has ended"
            ) from None
        yield


@contextmanager
def _translate_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OrtetError:
        raise
    except OSError as error:
        raise storage_error(error, f"writing the backup {target}") from error


def _copy_file(source: int, part: Path) -> int:
    """Copy what a file holds now, durably. Return its size."""
    size = os.fstat(source).st_size
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with closing(os.fdopen(fd, "wb")) as file:
        done = 0
        while done < size and (data := os.pread(source, min(_CHUNK_BYTES, size - done), done)):
            file.write(data)
            done += len(data)
        file.flush()
        os.fsync(fd)
    return done


def _write_manifest(target: Path, manifest: BackupManifest) -> None:
    _write_file(target / MANIFEST, msgspec.json.encode(manifest))


def _write_file(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + _PART)
    part.write_bytes(data)
    _sync_file(part)
    os.replace(part, path)
    sync_directory(path.parent)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sum_of(path: Path) -> str:
    parts: list[bytes] = []
    with open(path, "rb") as file:
        while data := file.read(_CHUNK_BYTES):
            parts.append(checksum(data))
    return checksum(*parts).hex()


def _remove_others(target: Path, kept: set[str]) -> int:
    """Delete packs, tails and archives of earlier backups that the store does not have any more."""
    removed = 0
    for area in ("bucket", "local/tails", "local/index"):
        for path in sorted((target / area).rglob("*")):
            name = str(path.relative_to(target))
            if path.is_file() and name not in kept:
                path.unlink()
                removed += not name.endswith(_PART) and area != "local/index"
    return removed
