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

FRESH = 1.0
"""Seconds for which what was heard need not be asked again."""


@runtime_checkable
class Fencing(Protocol):
    """A catalog that can refuse, from now on, what the writers of all hosts rely on."""

    def raise_epoch(self, lease: Lease) -> int:
        """Begin a new epoch, durably, when all writes that showed the old one have ended; Refused
        when the lease is not held any more."""


class Epochs:
    """What was heard last, and what each thread relies on while it writes."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._heard: int | None = None
        self._when = 0.0
        self._relied: dict[int, int] = {}

    def hear(self, epoch: int) -> None:
        self._heard, self._when = epoch, time.monotonic()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """A write that is refused tells the epoch that it should have shown."""
        try:
            yield
        except Conflict as error:
            if error.kind == "swept":
                self.hear(error.details["epoch"])
            raise

    def now(self) -> int:
        """As of the last answer, however long ago."""
        return self.ask() if self._heard is None else self._heard

    def ask(self) -> int:
        """As it is at this moment."""
        self.hear(self._ask())
        return self._heard or 0

    def fresh(self) -> int:
        """As of a moment ago: a writer that begins with an old one is refused at its end."""
        return self.ask() if time.monotonic() - self._when > FRESH else self.now()

    def rely(self, epoch: int | None) -> None:
        """From now on this thread's writes show it; None: they name no objects."""
        if epoch is None:
            self._relied.pop(get_ident(), None)
        else:
            self._relied[get_ident()] = epoch

    def relied(self) -> int | None:
        return self._relied.get(get_ident())
