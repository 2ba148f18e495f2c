"""The lock between writers and sweeps.

Commits share gc.lock. The last phase of a sweep holds it exclusively.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ortet._util.codec import checksum
from ortet.errors import Invalid, Unavailable
from ortet.objects.source import AutoClosingFd

_LOCK_POLL_SECONDS = 0.002
_EPOCH_FORMAT = b"%-31d\n"


class SweepFence(ABC):
    """Keeps a sweep and the writers apart. `SweepLock` calls it for the first and last writer."""

    @abstractmethod
    def lock_shared(self) -> None:
        """Begin to write: the first writer of this process."""

    @abstractmethod
    def unlock_shared(self) -> None:
        """End writing: the last writer of this process."""

    @abstractmethod
    def begin_thread(self, epoch: int) -> None:
        """Note that the calling thread writes with this epoch."""

    @abstractmethod
    def end_thread(self) -> None:
        """Note that the calling thread does not write any more."""

    @abstractmethod
    def epoch(self) -> int:
        """Return the sweep epoch. The value may be cached."""

    @abstractmethod
    def fetch_epoch(self) -> int:
        """Return the current epoch, asked from the store."""

    @abstractmethod
    def require_exclusive(self, action: str) -> None:
        """Raise Unsupported if `exclusive` cannot exclude the writers of all hosts."""

    @abstractmethod
    def exclusive(self, timeout: float) -> AbstractContextManager[None]:
        """Exclude all writers, including those of this process.

        Raises Unavailable("writer_busy") if a writer does not finish within `timeout` seconds.
        """

    @abstractmethod
    def raise_epoch(self) -> int:
        """Write a new epoch durably and return it. Only allowed inside `exclusive`."""

    @abstractmethod
    def hold_gc_lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Hold gc.busy: exclusively for a sweep, shared for a verification.

        Raises Unavailable("sweep_busy") if it is held by another process.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the descriptors. The next use opens them again."""

    @abstractmethod
    def after_fork(self) -> None:
        """Start again in a child process. The parent's locks stay held."""


class FileFence(SweepFence):
    """File locks in a directory, for a store on one host.

    `gc.lock` holds the sweep epoch. `gc.gate` lets a waiting sweep stop new writers, which could
    otherwise make it wait forever. `gc.busy` excludes sweeps and verifications from one another.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: tuple[AutoClosingFd, AutoClosingFd] | None = self._open_lock_files()

    def _open_lock_files(self) -> tuple[AutoClosingFd, AutoClosingFd]:
        lock = AutoClosingFd(_open_lock_file(self._directory / "gc.lock"))
        with suppress(OSError):
            # Allocate space for the epoch now: a full disk must not prevent a sweep from freeing
            # space.
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(lock.fd, 0, len(_EPOCH_FORMAT % 0))
        return lock, AutoClosingFd(_open_lock_file(self._directory / "gc.gate"))

    @property
    def _lock_file(self) -> AutoClosingFd:
        return self._ensure_lock_files()[0]

    @property
    def _gate_file(self) -> AutoClosingFd:
        return self._ensure_lock_files()[1]

    def _ensure_lock_files(self) -> tuple[AutoClosingFd, AutoClosingFd]:
        files = self._files
        if files is None:
            files = self._files = self._open_lock_files()
        return files

    def close(self) -> None:
        self._files = None

    def after_fork(self) -> None:
        self._files = self._open_lock_files()

    def lock_shared(self) -> None:
        fcntl.flock(self._gate_file.fd, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._lock_file.fd, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate_file.fd, fcntl.LOCK_UN)

    def unlock_shared(self) -> None:
        fcntl.flock(self._lock_file.fd, fcntl.LOCK_UN)

    def begin_thread(self, epoch: int) -> None: ...

    def end_thread(self) -> None: ...

    def epoch(self) -> int:
        """Return the number in gc.lock.

        The epoch is only compared with an earlier one. Damaged bytes therefore give a number of
        their own, which no sweep writes.
        """
        text = os.pread(self._lock_file.fd, 32, 0).strip(b"\0\n ") or b"0"
        return int(text) if text.isdigit() else -int.from_bytes(checksum(text))

    def fetch_epoch(self) -> int:
        return self.epoch()

    def require_exclusive(self, action: str) -> None: ...

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        lock, gate = (
            _open_lock_file(self._directory / "gc.lock"),
            _open_lock_file(self._directory / "gc.gate"),
        )
        try:
            deadline = time.monotonic() + timeout
            _lock_exclusive(gate, deadline)
            _lock_exclusive(lock, deadline)
            yield
        finally:
            _unlock_and_close(lock)
            _unlock_and_close(gate)

    def raise_epoch(self) -> int:
        epoch = self.epoch() + 1
        if epoch <= 0:  # damaged: continue above all numbers that a handle may remember
            epoch = time.time_ns()
        fd = _open_lock_file(self._directory / "gc.lock")
        try:
            os.pwrite(fd, _EPOCH_FORMAT % epoch, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        return epoch

    @contextmanager
    def hold_gc_lock(self, *, exclusive: bool) -> Iterator[None]:
        fd = _open_lock_file(self._directory / "gc.busy")
        try:
            try:
                fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(
                    "sweep_busy",
                    "a sweep or verify of this store is running: repeat when it has ended",
                ) from None
            yield
        finally:
            _unlock_and_close(fd)


class SweepLock:
    """Counts the writers of one store handle, and keeps sweeps out while there is one.

    Re-entrant: all writers of a process share one lock.
    """

    def __init__(self, fence: SweepFence) -> None:
        self._fence = fence
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._writer_count = 0
        self._writers_by_thread: dict[int, int] = {}

    def close(self) -> None:
        """Close the descriptors unless a writer is active. The next use opens them again."""
        with self._mutex:
            if not self._writer_count:
                self._fence.close()

    def after_fork(self) -> None:
        """Start with new locks in a child process. The parent's locks stay held."""
        self._reset()
        self._fence.after_fork()

    def begin_write(self) -> int:
        """Begin to write. Return the sweep epoch, which cannot change before `end_write`."""
        me = threading.get_ident()
        with self._mutex:
            if not self._writer_count:
                self._fence.lock_shared()
            self._writer_count += 1
            self._writers_by_thread[me] = self._writers_by_thread.get(me, 0) + 1
        epoch = self._fence.epoch()
        self._fence.begin_thread(epoch)
        return epoch

    def end_write(self, pid: int) -> None:
        """End the write that began with `begin_write` in process `pid`.

        A child of fork(2) must not unlock for its parent.
        """
        me = threading.get_ident()
        if pid == os.getpid():
            with self._mutex:
                left = self._writers_by_thread.pop(me, 1) - 1
                if left:
                    self._writers_by_thread[me] = left
                self._writer_count -= 1
                if not self._writer_count:
                    self._fence.unlock_shared()
        if me not in self._writers_by_thread:
            self._fence.end_thread()

    def is_writing(self) -> bool:
        """Return True if the calling thread is a writer now."""
        return threading.get_ident() in self._writers_by_thread

    @contextmanager
    def sole_writer(self) -> Iterator[bool]:
        """Yield True if the caller is the only, not nested, writer of this process.

        No other writer can begin during the block.
        """
        with self._mutex:
            yield self._writer_count == 1

    def epoch(self) -> int:
        """Return the sweep epoch. It may be a cached value if the store is shared by hosts."""
        return self._fence.epoch()

    def fetch_epoch(self) -> int:
        """Return the current epoch, asked from the store."""
        return self._fence.fetch_epoch()

    def require_exclusive(self, action: str) -> None:
        """Raise Unsupported if this process cannot exclude the writers of all hosts."""
        self._fence.require_exclusive(action)

    def exclusive(self, timeout: float) -> AbstractContextManager[None]:
        """Exclude all writers, including those of this process.

        Raises Unavailable("writer_busy") if a writer does not finish within `timeout` seconds.
        """
        if self.is_writing():
            raise Invalid(
                "inside_writing", "a sweep can not run inside writing(): finish the commit first"
            )
        return self._fence.exclusive(timeout)

    def raise_epoch(self) -> int:
        """Write a new epoch durably and return it. Only allowed inside `exclusive`."""
        return self._fence.raise_epoch()

    def hold_gc_lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Hold gc.busy: exclusively for a sweep, shared for a verification.

        Raises Unavailable("sweep_busy") if it is held by another process.
        """
        return self._fence.hold_gc_lock(exclusive=exclusive)


def _open_lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _unlock_and_close(fd: int) -> None:
    """Unlock explicitly: a child of fork(2) may share the open file and would keep the lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _lock_exclusive(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "writer_busy", "a commit did not finish in time: repeat the sweep later"
                ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return
