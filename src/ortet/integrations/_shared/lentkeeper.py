"""A session that is lent, and the thread that has it back when another process asks."""

from __future__ import annotations

import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

from ortet.backends.base import Signal
from ortet.errors import Corrupt, Invalid, OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.sessions.history import cross_host_files
from ortet.sessions.session import Session
from ortet.sessions.writing.lease_handover import (
    HANDOVER_TOPIC,
    RETRY_SECONDS,
    LeaseRequest,
    LeaseRequests,
    is_shared_store,
    released_topic,
    request_topic,
)

_PRELOADED_MODULES = socket, cross_host_files
"""What the keeper's thread needs is loaded before it starts: a module that it loads while another
thread forks would stay locked in the child."""
_MAX_UNCOMMITTED_EVENTS = 1000
"""Events that are rather committed once than read by each who opens a session."""
_LEASE_CHECK_INTERVAL_SECONDS = 0.25
"""Seconds for which nobody takes a lease that was just seen, unless by force."""


class PooledSession:
    """A session that is open here."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.opened_at = self.last_used_at = time.monotonic()
        self.is_requested = False
        self._lease_checked_at = 0.0

    def has_lease(self, *, for_write: bool = False) -> bool:
        """As the catalog knows it: nobody ended it, or took it while this process slept. Who is
        about to write is told what was so a moment ago: a write shows the lease anyway."""
        holding = self.session.held_lease
        if holding.is_released:
            return False
        now = time.monotonic()
        if for_write and now - self._lease_checked_at < _LEASE_CHECK_INTERVAL_SECONDS:
            return True
        try:
            holding.renew_if_due()
        except Refused:
            return False
        held = self.session.hub.catalog.lease(holding.lease.name)
        mine = holding.lease
        found = held is not None and (held.owner, held.fence) == (mine.owner, mine.fence)
        self._lease_checked_at = now if found else 0.0
        return found


def call_weak_method(ref: weakref.WeakMethod[Callable[[], None]]) -> None:
    method = ref()
    if method is not None:
        method()


class SessionLeaseWaiter:
    """One who asks for a session that another process has, here or on another host, until a
    moment."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._request: LeaseRequest | None = None

    def next_wait(self, hub: Hub, session: str) -> Callable[[], None] | None:
        """How to wait for an answer, once it was asked for again; None when it is too late."""
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            return None
        self._request = self._request or LeaseRequest(hub, session)
        signal, topic = hub.signal, released_topic(session)
        token = signal.token(topic)
        pause = min(rest, self._request.send())
        return lambda: _wait_for(signal, topic, token, pause)

    def __enter__(self) -> SessionLeaseWaiter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._request is not None:
            self._request.__exit__(error)


def _wait_for(signal: Signal, topic: str, token: int, timeout: float) -> None:
    try:
        signal.wait(topic, token, timeout)
    except OSError:  # it was closed meanwhile, which is told next
        time.sleep(timeout)


def invalidates_session(error: BaseException) -> bool:
    """Whether what is in memory may not be what is stored: then it is read again."""
    if isinstance(error, Refused):
        return error.kind == "lease_lost"
    return not isinstance(error, Exception) or isinstance(error, Unavailable | Corrupt)


def run_pool_maintenance(
    maintain: weakref.WeakMethod[Callable[[Callable[[str], bool]], bool]], hub: Hub, pause: float
) -> None:
    """The keeper's thread: as long as a session is open, and its Lent is there. Where a signal may
    not reach, others ask by rows."""
    token, going = 0, True
    signal, requests = (
        hub.signal.with_prefix(HANDOVER_TOPIC),
        LeaseRequests(hub) if is_shared_store(hub) else None,
    )
    pause = min(RETRY_SECONDS, pause) if requests else pause
    del hub  # which is closed by whoever opened it, and collected then
    try:
        while going:
            before, rows = token, set[str]()
            try:
                before = token or signal.token(HANDOVER_TOPIC)
                signal.wait(HANDOVER_TOPIC, before, pause)
                token = signal.token(HANDOVER_TOPIC)
                if requests is not None:
                    rows = {request_topic(session) for session in requests.requested_sessions()}
            except (OSError, OrtetError):  # nobody can ask just now
                time.sleep(pause)
            method = maintain()
            going = method is not None and method(partial(_is_notified, signal, before, rows))
            del method  # who nobody uses any more is not kept by its keeper
    finally:
        with suppress(OSError, OrtetError):
            signal.close()


def _is_notified(signal: Signal, since: int, rows: set[str], topic: str) -> bool:
    try:
        return topic in rows or signal.wait(topic, since, 0)
    except (OSError, OrtetError):
        return False


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """Calls it as long as what it is of is there."""
    ref = weakref.WeakMethod(method)
    return lambda: call_weak_method(ref)


def close_in_thread(close: Callable[[], None]) -> None:
    """In a thread of its own. What is collected meanwhile, its files too, may be closed before."""

    def work() -> None:
        with suppress(OSError):
            close()

    with suppress(RuntimeError):  # at the end of the process, which closed it already
        Thread(target=work, name="ortet-lent-close").start()


def require_hub(hub: Hub) -> Hub:
    """Invalid for what else an adapter may be given: the path of a store, most of the time."""
    if not isinstance(hub, Hub):
        name = type(hub).__name__
        raise Invalid("bad_hub", f"{name} is no opened store: give what ortet.open() returned")
    return hub


def commit_if_long(session: Session) -> None:
    """Who opens it next, in a moment, need not read all that was not committed. Not where files
    would be committed too, which is for others to say."""
    ledger = session._writer
    if (
        ledger.tip.seq - ledger.event_log.base.seq > _MAX_UNCOMMITTED_EVENTS
        and not session.row.has_files
    ):
        with suppress(OrtetError):
            session.commit("handed over")


def hub_open_options(hub: Hub) -> dict[str, Any]:
    """What its store is opened with once more."""
    parts = require_hub(hub)._store
    return {
        "create": False,
        "clock": parts.clock,
        "random": parts.random,
        "environ": parts.environ,
        "embedder": parts.embedder,
    }
