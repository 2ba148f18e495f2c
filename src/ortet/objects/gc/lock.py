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
from ortet.objects.source import File

_POLL = 0.002
_EPOCH = b"%-31d\n"


class Gate:
    """The locks of one store handle. Re-entrant: nested and concurrent writers of a process share
    one lock.

    `gc.lock` holds the sweep epoch. `gc.gate` lets a waiting sweep stop new writers, which would
    otherwise keep it waiting for ever. `gc.busy` keeps sweeps and verifications apart.
    """

    def __init__(self, local: Path) -> None:
        self._local = local
        self._start()

    def _start(self) -> None:
        self._mutex = threading.Lock()
        self._depth = 0
        self._inside: dict[int, int] = {}
        self._files: tuple[File, File] | None = self._open()

    def _open(self) -> tuple[File, File]:
        lock = File(_open(self._local / "gc.lock"))
        with suppress(OSError):
            # Room for the epoch from the start: a full disk must not keep a sweep from freeing it.
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(lock.fd, 0, len(_EPOCH % 0))
        return lock, File(_open(self._local / "gc.gate"))

    @property
    def _lock(self) -> File:
        return self._held()[0]

    @property
    def _gate(self) -> File:
        return self._held()[1]

    def _held(self) -> tuple[File, File]:
        files = self._files
        if files is None:
            files = self._files = self._open()
        return files

    def close(self) -> None:
        """Give the descriptors back, unless somebody still writes; the next use opens them."""
        with self._mutex:
            if not self._depth:
                self._files = None

    def after_fork(self) -> None:
        """In a child: leave the parent's locks alone and begin anew."""
        self._start()

    def enter(self) -> int:
        """Begin to write; returns the sweep epoch, which can not change before `leave`."""
        me = threading.get_ident()
        with self._mutex:
            if not self._depth:
                self._take()
            self._depth += 1
            self._inside[me] = self._inside.get(me, 0) + 1
        return self.epoch()

    def _take(self) -> None:
        fcntl.flock(self._gate.fd, fcntl.LOCK_SH)
        try:
            fcntl.flock(self._lock.fd, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate.fd, fcntl.LOCK_UN)

    def _give(self) -> None:
        fcntl.flock(self._lock.fd, fcntl.LOCK_UN)

    def leave(self, pid: int) -> None:
        """End what the process `pid` began: a child of fork(2) must not unlock for its parent."""
        if pid != os.getpid():
            return
        me = threading.get_ident()
        with self._mutex:
            left = self._inside.pop(me, 1) - 1
            if left:
                self._inside[me] = left
            self._depth -= 1
            if not self._depth:
                self._give()

    def is_inside(self) -> bool:
        """Whether the calling thread is a writer now."""
        return threading.get_ident() in self._inside

    @contextmanager
    def last(self) -> Iterator[bool]:
        """Whether the caller is the only writer of this process, and not nested in another; none
        begins during the block."""
        with self._mutex:
            yield self._depth == 1

    def epoch(self) -> int:
        return int(os.pread(self._lock.fd, 32, 0).strip(b"\0\n ") or b"0")

    def asked(self) -> int:
        """The epoch at this moment, also where `epoch` is one that was heard."""
        return self.epoch()

    @contextmanager
    def exclusive(self, patience: float) -> Iterator[None]:
        """Keep all writers out, of this process too; Unavailable when one does not finish in
        time."""
        if self.is_inside():
            raise Invalid(
                "inside_writing", "a sweep can not run inside writing(): finish the commit first"
            )
        lock, gate = _open(self._local / "gc.lock"), _open(self._local / "gc.gate")
        try:
            deadline = time.monotonic() + patience
            _wait(gate, deadline)
            _wait(lock, deadline)
            yield
        finally:
            _give_back(lock)
            _give_back(gate)

    def bump(self) -> int:
        """A new epoch, durable; only inside `exclusive`."""
        epoch = self.epoch() + 1
        fd = _open(self._local / "gc.lock")
        try:
            os.pwrite(fd, _EPOCH % epoch, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        return epoch

    @contextmanager
    def busy(self, *, alone: bool) -> Iterator[None]:
        """For the time of a sweep (alone) or a verification (beside others)."""
        fd = _open(self._local / "gc.busy")
        try:
            try:
                fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(
                    "sweep_busy",
                    "a sweep or verify of this store is running: repeat when it has ended",
                ) from None
            yield
        finally:
            _give_back(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _give_back(fd: int) -> None:
    """Unlock by word: a child of fork(2) may still hold the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _wait(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "writer_busy", "a commit did not finish in time: repeat the sweep later"
                ) from None
            time.sleep(_POLL)
        else:
            return
