from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from threading import Lock

from ortet._util.fork_safety import close_at_fork


class Resource:
    """A resource that is locked while a process forks."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.lock = Lock()
        self.closed = 0
        self._before = before
        close_at_fork(self)

    def before_fork(self) -> None:
        self._before()
        self.lock.acquire()
        self.closed += 1

    def after_fork(self) -> None:
        self.lock.release()


def fork(check: Callable[[], bool]) -> bool:
    """Fork, and return what `check` returns in the child."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        status = 1
        try:
            status = int(not check())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_resource_is_closed_before_a_fork_and_usable_after_it_in_both_processes() -> None:
    resource = Resource()
    assert fork(lambda: resource.closed == 1 and resource.lock.acquire(blocking=False))
    assert resource.closed == 1
    assert resource.lock.acquire(blocking=False)


def test_a_resource_that_is_registered_while_a_fork_closes_others_is_closed_too() -> None:
    """A thread that opened its first connection at this moment left SQLite locked in the child."""
    late: list[Resource] = []
    first = Resource(before=lambda: late.append(Resource()) if not late else None)
    assert fork(lambda: late[0].closed == 1 and late[0].lock.acquire(blocking=False))
    assert (first.closed, late[0].closed) == (1, 1)


def test_a_registered_resource_can_be_collected() -> None:
    resource = Resource()
    ref = weakref.ref(resource)
    del resource
    gc.collect()
    assert ref() is None
    assert fork(lambda: True)
