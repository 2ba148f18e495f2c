"""How a process comes by a tail: follow another's, make one, or adopt and repair one that nobody
holds."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from weakref import WeakValueDictionary

from ortet._util.codec import checksum
from ortet._util.failpoints import failpoint
from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound, Unsupported
from ortet.objects import frame
from ortet.objects.source import AutoClosingFd
from ortet.objects.tail import (
    PACK_PART_SUFFIX,
    TAIL_SUFFIX,
    Tail,
    pack_key,
    storage_error,
    sync_data,
    sync_directory,
)


def follow_tail(path: Path, *, key_id: bytes) -> Tail | None:
    """Open another writer's tail for reading; None when it is gone (sealed, or was empty)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, f"opening {path}") from error
    tail = Tail(path, _share_file(fd), key_id=key_id)
    tail.advance()
    return tail


_FOLLOWED_FILES: WeakValueDictionary[tuple[int, int], AutoClosingFd] = WeakValueDictionary()
# Of the whole process, as descriptors are: where many have the store open, as in a server, each
# follows the tails of all others.


def _share_file(fd: int) -> AutoClosingFd:
    """The same file as others of this process have it open, if some do: all of them only read."""
    status = os.fstat(fd)
    key = status.st_dev, status.st_ino  # not given to another file while it is open
    mine = AutoClosingFd(fd)
    found = _FOLLOWED_FILES.get(key)
    if found is None:
        found = _FOLLOWED_FILES[key] = mine  # two at once have two: no harm
    return found


def create_tail(path: Path, *, key_id: bytes) -> Tail | None:
    """A new tail of ours; None when the name is taken, or another process was quick enough to adopt
    it: take another name."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        raise storage_error(error, "opening a tail") from error
    tail = Tail(path, AutoClosingFd(fd), key_id=key_id)
    return tail if _try_lock(fd) and _is_same_file(path, fd) else None


def adopt_tail(path: Path, bucket: Bucket, *, key_id: bytes) -> Tail | None:
    """Take over a tail nobody holds, repaired; None when it is held, gone, sealed, or newer than
    us."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, f"opening {path}") from error
    tail = Tail(path, AutoClosingFd(fd), key_id=key_id)
    try:
        if _try_lock(fd) and _is_same_file(path, fd) and not _remove_if_sealed(path, bucket):
            _recover_tail(tail, fd)
            # Its last owner may have been killed before its sync; what we append is synced apart.
            sync_data(fd)
            sync_directory(path.parent)
            tail.mark_adopted()
            return tail
    except Unsupported:
        pass  # a newer ortet wrote it: its frames are not ours to cut
    except OSError as error:
        raise storage_error(error, "recovering a tail") from error
    return None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(path: Path, fd: int) -> bool:
    """Whether the name still means what we locked: its owner may have sealed it while we came."""
    try:
        there, here = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _remove_if_sealed(path: Path, bucket: Bucket) -> bool:
    """A crash can leave the tail's name behind after its pack was stored: appending would change
    the pack."""
    try:
        bucket.size(pack_key(path.name.removesuffix(TAIL_SUFFIX)))
    except NotFound:
        return False
    for name in (path, path.with_suffix(PACK_PART_SUFFIX)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
    return True


def _recover_tail(tail: Tail, fd: int) -> None:
    """Keep every frame up to the first unsound one and cut there; sound frames behind it are saved
    first."""
    size = os.fstat(fd).st_size
    if not size:
        return
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
        _index_valid_frames(tail, data)
        if tail.end == size:
            return
        rest = _salvage_frames(data, tail.end)
    if rest:
        _save_salvaged(tail.path, rest)
    failpoint("recover.before-cut")
    os.ftruncate(fd, tail.end)
    failpoint("recover.after-cut")


def _index_valid_frames(tail: Tail, data: mmap.mmap) -> None:
    with contextlib.suppress(Corrupt):
        for lead in frame.scan(lambda at, length: data[at : at + length], 0, len(data)):
            body = lead.offset + lead.header.payload_start
            payload = data[body : body + lead.header.stored]
            frame.check_payload(lead.header, payload, offset=lead.offset)
            tail.index_frame(lead)


def _salvage_frames(data: mmap.mmap, start: int) -> bytes:
    """Whole frames behind the first bad one: flipped bits in one frame must not cost those after
    it."""

    def read(at: int, length: int) -> bytes:
        return data[at : at + length]

    found: list[bytes] = []
    at = frame.resync(read, start, len(data))
    while at is not None:
        lead = next(frame.scan(read, at, len(data)))
        end = at + lead.header.size
        with contextlib.suppress(Corrupt):
            frame.check_payload(lead.header, data[at + lead.header.payload_start : end], offset=at)
            found.append(data[at:end])
        at = frame.resync(read, end, len(data))
    return b"".join(found)


def _save_salvaged(path: Path, data: bytes) -> None:
    """What can be saved of a damaged end is durable in a tail of its own before the end is cut off.

    Named by its content, so that a crash and a second recovery save it once.
    """
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    name = f"{path.name.removesuffix(TAIL_SUFFIX)[:32]}-{checksum(data).hex()}{TAIL_SUFFIX}"
    os.replace(part, path.with_name(name))
    sync_directory(path.parent)
