"""Which sweep of a shared store a writer's knowledge is from.

A writer on another host holds no lock that a sweep could wait for. It shows instead, with every
write that may name objects, the epoch in which it looked for them; the catalog's host refuses the
write when a sweep has begun to delete since. Nothing is written then, and repeating it is safe.
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
"""Seconds for which what was heard need not be asked again."""


@runtime_checkable
class EpochFencedCatalog(Protocol):
    """A catalog that can refuse, from now on, what the writers of all hosts rely on."""

    def raise_epoch(self, lease: Lease) -> int:
        """Begin a new epoch, durably, when all writes that showed the old one have ended; Refused
        when the lease is not held any more."""


class EpochTracker:
    """What was heard last, and what each thread relies on while it writes."""

    def __init__(self, fetch: Callable[[], int]) -> None:
        self._fetch = fetch
        self._last_epoch: int | None = None
        self._observed_at = 0.0
        self._write_epochs: dict[int, int] = {}

    def observe(self, epoch: int) -> None:
        self._last_epoch, self._observed_at = epoch, time.monotonic()

    @contextmanager
    def observe_conflicts(self) -> Iterator[None]:
        """A write that is refused tells the epoch that it should have shown."""
        try:
            yield
        except Conflict as error:
            if error.kind == "swept":
                self.observe(error.details["epoch"])
            raise

    def cached(self) -> int:
        """As of the last answer, however long ago."""
        return self.refresh() if self._last_epoch is None else self._last_epoch

    def refresh(self) -> int:
        """As it is at this moment."""
        self.observe(self._fetch())
        return self._last_epoch or 0

    def recent(self) -> int:
        """As of a moment ago: a writer that begins with an old one is refused at its end."""
        return (
            self.refresh()
            if time.monotonic() - self._observed_at > EPOCH_MAX_AGE_SECONDS
            else self.cached()
        )

    def set_write_epoch(self, epoch: int | None) -> None:
        """From now on this thread's writes show it; None: they name no objects."""
        if epoch is None:
            self._write_epochs.pop(get_ident(), None)
        else:
            self._write_epochs[get_ident()] = epoch

    def write_epoch(self) -> int | None:
        return self._write_epochs.get(get_ident())
