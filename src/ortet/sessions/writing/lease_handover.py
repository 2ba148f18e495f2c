"""Lease hand-over between processes that share a session.

A server keeps a session open between requests. It releases the lease when another process asks for
the session and nothing runs in it. Requests go by signal, and by a catalog row to other hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backends.base import Lease, Signal
from ortet.errors import OrtetError, Refused
from ortet.store.lease import acquire_lease

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

HANDOVER_OWNER_PREFIX = "lent-"
"""Prefix of the last part of an owner name: this owner releases the lease on request."""
HANDOVER_TOPIC = "rooms"
"""Signal topic of hand-over requests, and prefix of the related topics."""
RETRY_SECONDS = 0.25
"""Seconds until a request is repeated."""
FIRST_RETRY_SECONDS = 0.05
"""Seconds until the first repetition. A signal that reaches the owner arrives earlier."""
_REQUEST_ROW_KIND = "wanted"
"""Row kind of requests by session, for owners on hosts that no signal reaches."""
_STALE_REQUEST_SECONDS = 60.0
"""Seconds without a change after which a request row is stale."""
_HANDOVER_TIMEOUT_SECONDS = 5.0


def request_handover(signal: Signal, session: str) -> None:
    for topic in (request_topic(session), HANDOVER_TOPIC):
        with suppress(OSError, OrtetError):  # only a hint
            signal.notify(topic)


class LeaseRequest:
    """A request for the lease of a session, by signal first and then also by a row."""

    def __init__(self, store: StoreContext, session: str) -> None:
        self._store = store
        self._session = session
        self._sent_count = 0

    def send(self) -> float:
        """Send the request. Return the seconds to wait before sending it again."""
        store = self._store
        request_handover(store.signal, self._session)
        self._sent_count += 1
        if self._sent_count == 1:
            return FIRST_RETRY_SECONDS
        if store.is_shared:
            with suppress(OrtetError):  # only a hint
                store.catalog.put_row(_REQUEST_ROW_KIND, self._session, b"")
        return RETRY_SECONDS

    def __enter__(self) -> LeaseRequest:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Notify the previous owner on success, and remove the request row."""
        if self._sent_count and error is None:
            with suppress(OSError, OrtetError):  # only a hint
                self._store.signal.notify(received_topic(self._session))
        if self._sent_count > 1 and self._store.is_shared:
            with suppress(OrtetError):
                self._store.catalog.drop_row(_REQUEST_ROW_KIND, self._session)


class LeaseRequests:
    """The request rows as an owner sees them.

    A requester rewrites its row repeatedly. The time without a change is measured here, because the
    clocks of hosts differ.
    """

    def __init__(self, store: StoreContext) -> None:
        self._store = store
        self._versions: dict[str, tuple[int, float]] = {}  # version and the time it was first seen

    def requested_sessions(self) -> set[str]:
        """Return the sessions requested now, and drop stale rows."""
        if not self._store.is_shared:
            return set()
        seen, now = self._versions, time.monotonic()
        self._versions = {}
        for row in self._store.catalog.rows(_REQUEST_ROW_KIND):
            version, since = seen.get(row.key, (0, now))
            if version != row.version:
                since = now
            if now - since < _STALE_REQUEST_SECONDS:
                self._versions[row.key] = (row.version, since)
            else:
                self._store.catalog.drop_row(_REQUEST_ROW_KIND, row.key)
        return set(self._versions)


def request_topic(session: str) -> str:
    """Return the topic of requests for one session."""
    return f"{HANDOVER_TOPIC}:{session}"


def requested_session(topic: str) -> str:
    """Return the session of a request topic, or "" for another topic."""
    word, _, session = topic.partition(":")
    return session if word == HANDOVER_TOPIC and ":" not in session else ""


def released_topic(session: str) -> str:
    """Return the topic by which an owner says that it has released the lease."""
    return f"{HANDOVER_TOPIC}:left:{session}"


def received_topic(session: str) -> str:
    """Return the topic by which a requester says that it has the lease."""
    return f"{HANDOVER_TOPIC}:taken:{session}"


def acquire_or_request_lease(
    store: StoreContext, session: str, owner: Callable[[], str], host: str
) -> Lease:
    """Acquire the lease of a session, asking its owner to release it where that helps.

    A process that itself hands over leases does not wait here: it has its own waiting rules.

    Raises:
        Refused: "lease_held" if the owner does not release it in time, or never does so on request.
    """
    name, topic = f"session:{session}", released_topic(session)
    until = time.monotonic() + _HANDOVER_TIMEOUT_SECONDS
    with LeaseRequest(store, session) as request:
        while True:
            try:
                return acquire_lease(store.catalog, name, owner(), host)
            except Refused as error:
                rest = until - time.monotonic()
                lent = is_handover_owner(str(error.details.get("owner", "")))
                if (
                    error.kind != "lease_held"
                    or store.allows_lease_handover
                    or not lent
                    or rest <= 0
                ):
                    raise
            token = store.signal.token(topic)
            store.signal.wait(topic, token, min(rest, request.send()))


def is_handover_owner(owner: str) -> bool:
    return owner.rpartition(":")[2].startswith(HANDOVER_OWNER_PREFIX)
