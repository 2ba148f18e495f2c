"""Opens tails: follows another writer's tail, creates one, or adopts and repairs one."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from weakref import WeakValueDictionary

from ortet._util.codec import checksum
from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
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
    """Open another writer's tail for reading. Return None if it is gone (sealed, or was empty)."""
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
# Shared by the whole process to save descriptors. A server has the store open many times, and each
# handle follows the tails of all others.


def _share_file(fd: int) -> AutoClosingFd:
    """Return the descriptor that this process already has for the same file, or wrap `fd`."""
    status = os.fstat(fd)
    key = status.st_dev, status.st_ino  # an inode number is not reused while the file is open
    mine = AutoClosingFd(fd)
    shared = _FOLLOWED_FILES.get(key)
    if shared is None:
        shared = _FOLLOWED_FILES[key] = mine  # a race creates two descriptors, which is harmless
    return shared


def create_tail(path: Path, *, key_id: bytes) -> Tail | None:
    """Create a tail of our own and lock it.

    Return None if the name is taken or another process adopted the file first. The caller then
    tries another name.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        raise storage_error(error, "opening a tail") from error
    tail = Tail(path, AutoClosingFd(fd), key_id=key_id)
    return tail if _try_lock(fd) and _is_same_file(path, fd) else None


def adopt_tail(path: Path, bucket: Bucket, *, key_id: bytes) -> Tail | None:
    """Lock and repair a tail that no process holds.

    Return None if the tail is locked, gone, sealed, or written by a newer Ortet.
    """
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
            # The last owner may have been killed before its sync. Our own syncs cover only what we
            # append.
            sync_data(fd)
            sync_directory(path.parent)
            tail.mark_adopted()
            return tail
    except Unsupported:
        pass  # a newer ortet wrote it: do not truncate its frames
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
    """Return True if `path` still names the locked file.

    Its owner may have sealed it before we locked.
    """
    try:
        there, here = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _remove_if_sealed(path: Path, bucket: Bucket) -> bool:
    """Delete the tail if its pack is stored, and return True.

    A crash can leave the tail's name after its pack was stored. Appending would then change the
    pack.
    """
    try:
        bucket.size(pack_key(path.name.removesuffix(TAIL_SUFFIX)))
    except NotFound:
        return False
    for name in (path, path.with_suffix(PACK_PART_SUFFIX)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
    return True


def _recover_tail(tail: Tail, fd: int) -> None:
    """Truncate the tail at the first invalid frame. Save valid frames after it first."""
    size = os.fstat(fd).st_size
    if not size:
        return
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
        _index_valid_frames(tail, data)
        if tail.end == size:
            return
        rest = _salvage_frames(data, tail.end)
    if rest:
        get_logger(__name__).warning(
            "tail %s is damaged at byte %d: %d bytes after it are saved in another tail",
            tail.path.name,
            tail.end,
            len(rest),
        )
        _save_salvaged(tail.path, rest)
    failpoint("recover.before-cut")
    os.ftruncate(fd, tail.end)
    get_logger(__name__).info(
        "cut %d bytes of an unfinished write from tail %s", size - tail.end, tail.path.name
    )
    failpoint("recover.after-cut")


def _index_valid_frames(tail: Tail, data: mmap.mmap) -> None:
    with contextlib.suppress(Corrupt):
        for frame_info in frame.scan(lambda at, length: data[at : at + length], 0, len(data)):
            body = frame_info.offset + frame_info.header.payload_start
            payload = data[body : body + frame_info.header.stored]
            frame.check_payload(frame_info.header, payload, offset=frame_info.offset)
            tail.index_frame(frame_info)


def _salvage_frames(data: mmap.mmap, start: int) -> bytes:
    """Return the intact frames after the first bad one.

    Damage in one frame must not lose later ones.
    """

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    frames: list[bytes] = []
    position = frame.resync(read, start, len(data))
    while position is not None:
        frame_info = next(frame.scan(read, position, len(data)))
        end = position + frame_info.header.size
        with contextlib.suppress(Corrupt):
            frame.check_payload(
                frame_info.header,
                data[position + frame_info.header.payload_start : end],
                offset=position,
            )
            frames.append(data[position:end])
        position = frame.resync(read, end, len(data))
    return b"".join(frames)


def _save_salvaged(path: Path, data: bytes) -> None:
    """Write salvaged frames durably to a tail of their own, before the damaged end is truncated.

    The name comes from the content. A second recovery after a crash writes the same file.
    """
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    name = f"{path.name.removesuffix(TAIL_SUFFIX)[:32]}-{checksum(data).hex()}{TAIL_SUFFIX}"
    os.replace(part, path.with_name(name))
    sync_directory(path.parent)
