"""The sweep epoch: detects writes that rely on objects a concurrent sweep may have deleted.

A sweep on one host cannot wait for a lock held by a writer on another host. Instead, every write
that may refer to objects carries the epoch in which the writer looked them up. The catalog refuses
the write if a sweep has started to delete since then. Nothing is written in that case, so retrying
is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Protocol, runtime_checkable

from ortet.backends.base import Lease
from ortet.errors import Conflict

EPOCH_MAX_AGE_SECONDS = 1.0
"""Seconds for which a fetched epoch counts as recent."""


@runtime_checkable
class EpochFencedCatalog(Protocol):
    """A catalog that can start a new sweep epoch for the writers of all hosts."""

    def raise_epoch(self, lease: Lease) -> int:
        """Start a new epoch durably, after all writes with the old epoch have ended.

        Raise Refused if `lease` is no longer held.
        """


class EpochTracker:
    """Tracks the last known epoch, and the epoch of each thread's current write."""

    def __init__(self, fetch: Callable[[], int]) -> None:
        self._fetch = fetch
        self._last_epoch: int | None = None
        self._observed_at = 0.0
        self._write_epochs: dict[int, int] = {}

    def observe(self, epoch: int) -> None:
        """Record the current epoch as reported by the catalog."""
        self._last_epoch, self._observed_at = epoch, time.monotonic()

    @contextmanager
    def observe_conflicts(self) -> Iterator[None]:
        """Record the current epoch if the block fails with Conflict("swept")."""
        try:
            yield
        except Conflict as error:
            if error.kind == "swept":
                self.observe(error.details["epoch"])
            raise

    def cached(self) -> int:
        """Return the last known epoch, however old; fetch it if none is known."""
        return self.refresh() if self._last_epoch is None else self._last_epoch

    def refresh(self) -> int:
        """Fetch and return the current epoch."""
        self.observe(self._fetch())
        return self._last_epoch or 0

    def recent(self) -> int:
        """Return an epoch that is at most EPOCH_MAX_AGE_SECONDS old.

        A writer that starts with an outdated epoch is refused when it finishes.
        """
        return (
            self.refresh()
            if time.monotonic() - self._observed_at > EPOCH_MAX_AGE_SECONDS
            else self.cached()
        )

    def set_write_epoch(self, epoch: int | None) -> None:
        """Set the epoch that this thread's writes carry; None if they refer to no objects."""
        if epoch is None:
            self._write_epochs.pop(get_ident(), None)
        else:
            self._write_epochs[get_ident()] = epoch

    def write_epoch(self) -> int | None:
        """Return the epoch that this thread's writes carry, or None."""
        return self._write_epochs.get(get_ident())
