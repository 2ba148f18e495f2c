"""Hooks around `fork(2)` for resources that a child process must not inherit.

A module of its own, because `os.register_at_fork` hooks cannot be removed. The hooks here hold weak
references, so that a registered object can still be collected.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Protocol


class ForkAware(Protocol):
    """A resource that must be closed before `fork(2)`."""

    def before_fork(self) -> None:
        """Wait for other threads, then close.

        The child must not inherit a half-finished operation.
        """

    def after_fork(self) -> None:
        """Allow use again. Called in the parent and in the child."""


_NUMBERS = itertools.count()
_RESOURCES: dict[int, weakref.ref[ForkAware]] = {}
_ONE_FORK = Lock()
"""Held by the thread that forks: a second one waits with nothing held."""
_REGISTRATION = Lock()
"""Held from the last look at `_RESOURCES` until the fork is done."""
_CLOSED: list[ForkAware] = []


def close_at_fork(resource: ForkAware) -> None:
    """Call the hooks of `resource` around every fork, until it is garbage-collected.

    A thread that registers a resource while another thread forks either registers in time, and the
    fork closes the resource too, or waits until the fork is done. Otherwise it could be inside
    SQLite at the moment of the fork, and the child would wait for ever for SQLite's own locks.
    """
    number = next(_NUMBERS)
    with _REGISTRATION:
        # a weak reference: the table must not keep the object alive
        _RESOURCES[number] = weakref.ref(resource, lambda _: _RESOURCES.pop(number, None))


def _close_all() -> None:
    _ONE_FORK.acquire()
    done: set[int] = set()
    failed: BaseException | None = None
    while True:
        _REGISTRATION.acquire()
        new = {number: ref for number, ref in _RESOURCES.copy().items() if number not in done}
        if not new:
            break
        # before_fork waits for threads, and such a thread may be about to register a resource
        _REGISTRATION.release()
        done |= new.keys()
        for _, ref in sorted(new.items(), reverse=True):
            resource = ref()
            if resource is None:
                continue
            try:
                resource.before_fork()
            except BaseException as error:  # the others must be closed too
                failed = error
            else:
                _CLOSED.append(resource)
            del resource
    if failed is not None:
        raise failed  # Python reports it and forks


def _allow_all() -> None:
    _REGISTRATION.release()
    while _CLOSED:
        _CLOSED.pop().after_fork()
    _ONE_FORK.release()


os.register_at_fork(before=_close_all, after_in_parent=_allow_all, after_in_child=_allow_all)


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
