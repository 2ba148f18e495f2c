"""Who may write while the store is swept: gc.lock, shared by commits, exclusive for the end of a
sweep."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ortet.errors import Invalid, Unavailable
from ortet.objects.source import AutoClosingFd

_LOCK_POLL_SECONDS = 0.002
_EPOCH_FORMAT = b"%-31d\n"


class SweepLock:
    """The locks of one store handle. Re-entrant: nested and concurrent writers of a process share
    one lock.

    `gc.lock` holds the sweep epoch. `gc.gate` lets a waiting sweep stop new writers, which would
    otherwise keep it waiting for ever. `gc.busy` keeps sweeps and verifications apart.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._writer_count = 0
        self._writers_by_thread: dict[int, int] = {}
        self._files: tuple[AutoClosingFd, AutoClosingFd] | None = self._open_lock_files()

    def _open_lock_files(self) -> tuple[AutoClosingFd, AutoClosingFd]:
        lock = AutoClosingFd(_open_lock_file(self._directory / "gc.lock"))
        with suppress(OSError):
            # Room for the epoch from the start: a full disk must not keep a sweep from freeing it.
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
        """Give the descriptors back, unless somebody still writes; the next use opens them."""
        with self._mutex:
            if not self._writer_count:
                self._files = None

    def after_fork(self) -> None:
        """In a child: leave the parent's locks alone and begin anew."""
        self._reset()

    def begin_write(self) -> int:
        """Begin to write; returns the sweep epoch, which can not change before `leave`."""
        me = threading.get_ident()
        with self._mutex:
            if not self._writer_count:
                self._lock_shared()
            self._writer_count += 1
            self._writers_by_thread[me] = self._writers_by_thread.get(me, 0) + 1
        return self.epoch()

    def _lock_shared(self) -> None:
        fcntl.flock(self._gate_file.fd, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._lock_file.fd, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate_file.fd, fcntl.LOCK_UN)

    def _unlock_shared(self) -> None:
        fcntl.flock(self._lock_file.fd, fcntl.LOCK_UN)

    def end_write(self, pid: int) -> None:
        """End what the process `pid` began: a child of fork(2) must not unlock for its parent."""
        if pid != os.getpid():
            return
        me = threading.get_ident()
        with self._mutex:
            left = self._writers_by_thread.pop(me, 1) - 1
            if left:
                self._writers_by_thread[me] = left
            self._writer_count -= 1
            if not self._writer_count:
                self._unlock_shared()

    def is_writing(self) -> bool:
        """Whether the calling thread is a writer now."""
        return threading.get_ident() in self._writers_by_thread

    @contextmanager
    def sole_writer(self) -> Iterator[bool]:
        """Whether the caller is the only writer of this process, and not nested in another; none
        begins during the block."""
        with self._mutex:
            yield self._writer_count == 1

    def epoch(self) -> int:
        return int(os.pread(self._lock_file.fd, 32, 0).strip(b"\0\n ") or b"0")

    def fetch_epoch(self) -> int:
        """The epoch at this moment, also where `epoch` is one that was heard."""
        return self.epoch()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Keep all writers out, of this process too; Unavailable when one does not finish in
        time."""
        if self.is_writing():
            raise Invalid(
                "inside_writing", "a sweep can not run inside writing(): finish the commit first"
            )
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
        """A new epoch, durable; only inside `exclusive`."""
        epoch = self.epoch() + 1
        fd = _open_lock_file(self._directory / "gc.lock")
        try:
            os.pwrite(fd, _EPOCH_FORMAT % epoch, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        return epoch

    @contextmanager
    def hold_gc_lock(self, *, exclusive: bool) -> Iterator[None]:
        """For the time of a sweep (alone) or a verification (beside others)."""
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


def _open_lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _unlock_and_close(fd: int) -> None:
    """Unlock by word: a child of fork(2) may still hold the descriptor."""
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
