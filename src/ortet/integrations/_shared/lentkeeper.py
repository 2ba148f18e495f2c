"""Helpers of the adapter session pool: pooled session, lease waiting, maintenance thread."""

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
"""Modules that the maintenance thread uses, loaded before the thread starts.

If the thread imported a module while another thread forks, the import lock would stay held in the
child.
"""
_MAX_UNCOMMITTED_EVENTS = 1000
"""Uncommitted events above which a session is committed before another process opens it."""
_LEASE_CHECK_INTERVAL_SECONDS = 0.25
"""Seconds for which a lease check is trusted.

Nobody else takes the lease in that time, except by force.
"""


class PooledSession:
    """A session that is open in an adapter session pool."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.opened_at = self.last_used_at = time.monotonic()
        self.is_requested = False
        self._lease_checked_at = 0.0

    def has_lease(self, *, for_write: bool = False) -> bool:
        """Return True if the catalog still records this process as the lease holder.

        The lease may have ended or moved to another process while this process was suspended. With
        `for_write` a recent answer is reused, because the write itself checks the lease.
        """
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
    """Requests a session from another process, on this or another host, until a deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._request: LeaseRequest | None = None

    def next_wait(self, hub: Hub, session: str) -> Callable[[], None] | None:
        """Send the request again and return a function that waits for an answer.

        Return None if the deadline has passed.
        """
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
    except OSError:  # The signal was closed; the caller notices that next.
        time.sleep(timeout)


def invalidates_session(error: BaseException) -> bool:
    """Return True if the in-memory state may differ from the stored one and must be read again."""
    if isinstance(error, Refused):
        return error.kind == "lease_lost"
    return not isinstance(error, Exception) or isinstance(error, Unavailable | Corrupt)


def run_pool_maintenance(
    maintain: weakref.WeakMethod[Callable[[Callable[[str], bool]], bool]], hub: Hub, pause: float
) -> None:
    """Body of the maintenance thread of a session pool.

    The thread runs while a session is open and the pool exists. In a shared store a signal may not
    reach this host, so requests are also read from catalog rows.
    """
    token, going = 0, True
    signal, requests = (
        hub.signal.with_prefix(HANDOVER_TOPIC),
        LeaseRequests(hub) if is_shared_store(hub) else None,
    )
    pause = min(RETRY_SECONDS, pause) if requests else pause
    del hub  # Drop this reference: the owner closes the hub, and then it can be collected.
    try:
        while going:
            before, rows = token, set[str]()
            try:
                before = token or signal.token(HANDOVER_TOPIC)
                signal.wait(HANDOVER_TOPIC, before, pause)
                token = signal.token(HANDOVER_TOPIC)
                if requests is not None:
                    rows = {request_topic(session) for session in requests.requested_sessions()}
            except (OSError, OrtetError):  # Requests cannot arrive at the moment.
                time.sleep(pause)
            method = maintain()
            going = method is not None and method(partial(_is_notified, signal, before, rows))
            # Drop the strong reference, so that the thread does not keep an unused pool alive.
            del method
    finally:
        with suppress(OSError, OrtetError):
            signal.close()


def _is_notified(signal: Signal, since: int, rows: set[str], topic: str) -> bool:
    try:
        return topic in rows or signal.wait(topic, since, 0)
    except (OSError, OrtetError):
        return False


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls the method as long as its object exists."""
    ref = weakref.WeakMethod(method)
    return lambda: call_weak_method(ref)


def close_in_thread(close: Callable[[], None]) -> None:
    """Call `close` in a new thread. Its files may already be closed by garbage collection."""

    def work() -> None:
        with suppress(OSError):
            close()

    with suppress(RuntimeError):
        # Starting a thread fails at interpreter exit, when everything is already closed.
        Thread(target=work, name="ortet-lent-close").start()


def require_hub(hub: Hub) -> Hub:
    """Return `hub`; raise Invalid if it is anything else, such as the path of a store."""
    if not isinstance(hub, Hub):
        name = type(hub).__name__
        raise Invalid("bad_hub", f"{name} is no opened store: give what ortet.open() returned")
    return hub


def commit_if_long(session: Session) -> None:
    """Commit a session that has many uncommitted events, so that the next opener reads fewer.

    Sessions with files are skipped: their owner decides when files are committed.
    """
    ledger = session._writer
    if (
        ledger.tip.seq - ledger.event_log.base.seq > _MAX_UNCOMMITTED_EVENTS
        and not session.row.has_files
    ):
        with suppress(OrtetError):
            session.commit("handed over")


def hub_open_options(hub: Hub) -> dict[str, Any]:
    """Return the options for opening the same store a second time."""
    parts = require_hub(hub)._store
    return {
        "create": False,
        "clock": parts.clock,
        "random": parts.random,
        "environ": parts.environ,
        "embedder": parts.embedder,
    }
