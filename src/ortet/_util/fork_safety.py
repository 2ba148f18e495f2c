"""Hooks around `fork(2)` for resources that a child process must not inherit.

A module of its own, because `os.register_at_fork` hooks cannot be removed. The hooks here hold weak
references, so that a registered object can still be collected.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    """A resource that must be closed before `fork(2)`."""

    def before_fork(self) -> None:
        """Wait for other threads, then close.

        The child must not inherit a half-finished operation.
        """

    def after_fork(self) -> None:
        """Allow use again. Called in the parent and in the child."""


def close_at_fork(resource: ForkAware) -> None:
    """Call the hooks of `resource` around every fork, until it is garbage-collected."""
    # a hook cannot be unregistered, so it must not keep the object alive
    ref = weakref.ref(resource)
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
    """Call the bound method `begin` in every forked child, until its object is garbage-collected.

    `begin` recreates locks and state. A thread that does not exist in the child may have held a
    lock.
    """
    ref = weakref.WeakMethod(begin)

    def call() -> None:
        method = ref()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)
