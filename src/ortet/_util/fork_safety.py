"""What must not cross fork(2): a database's handle is closed before it, and opened again on use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    def before_fork(self) -> None:
        """Wait for other threads, and close: the child must not inherit half of anything."""

    def after_fork(self) -> None:
        """In parent and child."""


def close_at_fork(resource: ForkAware) -> None:
    """For as long as it lives."""
    ref = weakref.ref(resource)  # hooks cannot be taken back, so they must not keep it alive
    held: list[ForkAware] = []

    def before() -> None:
        found = ref()
        if found is not None:
            found.before_fork()
            held.append(found)

    def after() -> None:
        while held:
            held.pop().after_fork()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def reset_in_child(begin: Callable[[], None]) -> None:
    """A method that makes locks and rows anew, which a thread that is not there in the child may
    have held; for as long as what it is of lives."""
    ref = weakref.WeakMethod(begin)

    def call() -> None:
        method = ref()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)
