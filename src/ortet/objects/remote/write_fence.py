"""The sweep fence of a store that is shared between hosts.

Writers are not locked out. A write that overlapped a sweep is refused by its epoch instead. See
backends/sweep_epoch.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import Unsupported
from ortet.objects.gc.lock import SweepFence


class WriteFence(SweepFence):
    """Refuses writes by their epoch. Exclusive locks are refused: see gc/sweep_remote.py."""

    def __init__(self, epochs: EpochTracker) -> None:
        self._epochs = epochs
        self._write_epoch: int | None = None  # None: no writer of this process is active

    def lock_shared(self) -> None:
        self._write_epoch = self._epochs.recent()

    def unlock_shared(self) -> None:
        self._write_epoch = None

    def begin_thread(self, epoch: int) -> None:
        self._epochs.set_write_epoch(epoch)

    def end_thread(self) -> None:
        self._epochs.set_write_epoch(None)

    def close(self) -> None: ...

    def after_fork(self) -> None:
        self._write_epoch = None
        self._epochs.set_write_epoch(None)  # the child does not continue its parent's write

    def epoch(self) -> int:
        epoch = self._write_epoch
        return self._epochs.cached() if epoch is None else epoch

    def fetch_epoch(self) -> int:
        return self._epochs.refresh()

    def require_exclusive(self, action: str) -> None:
        raise _remote_store_error(action)

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
