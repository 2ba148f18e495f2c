"""The sweep lock of a store that is shared between hosts.

Writers are not locked out. A write that overlapped a sweep is refused by its epoch instead. See
backends/sweep_epoch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import Unsupported
from ortet.objects.gc.lock import SweepLock


class WriteFence(SweepLock):
    """A SweepLock without file locks. Exclusive locks are refused: see gc/sweep_remote.py."""

    def __init__(self, directory: Path, epochs: EpochTracker) -> None:
        self._epochs = epochs
        self._write_epoch = 0
        super().__init__(directory)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._writer_count = 0
        self._writers_by_thread: dict[int, int] = {}
        self._files = None

    def after_fork(self) -> None:
        super().after_fork()
        self._epochs.set_write_epoch(None)  # the child does not continue its parent's write

    def begin_write(self) -> int:
        epoch = super().begin_write()
        self._epochs.set_write_epoch(epoch)
        return epoch

    def end_write(self, pid: int) -> None:
        super().end_write(pid)
        if threading.get_ident() not in self._writers_by_thread:
            self._epochs.set_write_epoch(None)

    def _lock_shared(self) -> None:
        self._write_epoch = self._epochs.recent()

    def _unlock_shared(self) -> None: ...

    def epoch(self) -> int:
        return self._write_epoch if self._writer_count else self._epochs.cached()

    def fetch_epoch(self) -> int:
        """Return the current epoch, asked from the store."""
        return self._epochs.refresh()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        del timeout
        raise _remote_store_error("this")
        yield

    def raise_epoch(self) -> int:
        raise _remote_store_error("this")

    @contextmanager
    def hold_gc_lock(self, *, exclusive: bool) -> Iterator[None]:
        if exclusive:
            raise _remote_store_error("this")
        yield


def _remote_store_error(action: str) -> Unsupported:
    return Unsupported(
        "remote_store",
        f"{action} must keep out the writers of all hosts, which only the server can: do it there",
    )


def refuse_remote(action: str) -> None:
    """Raise Unsupported("remote_store") before anything is done."""
    raise _remote_store_error(action)
