"""Sessions that are lent: a server keeps one open between requests, and lets it go when another
process asks for it, and nothing runs in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backends.base import Lease, Signal
from ortet.errors import OrtetError, Refused
from ortet.sessions.profiles import DEFAULT_OPTIONS, OpenOptions
from ortet.sessions.starting import NO_FILES, FilesLocation, check_fits
from ortet.sessions.table import PAUSED
from ortet.store.lease import acquire_lease

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow

HANDOVER_OWNER_PREFIX = "lent-"
"""How the last part of a lender's name begins: who is refused can tell that asking helps."""
HANDOVER_TOPIC = "rooms"
"""The topic under which lenders are asked; others of theirs begin with it."""
RETRY_SECONDS = 0.25
"""Seconds after which a lender is asked again."""
FIRST_RETRY_SECONDS = 0.05
"""The same of the first time: a signal that reaches the lender has done so by then."""
_REQUEST_ROW_KIND = "wanted"
"""Rows of this kind, by session, ask lenders of other hosts, whom no signal may reach."""
_STALE_REQUEST_SECONDS = 60.0
"""Seconds after which a row that does not change is of an asker who is gone."""
_HANDOVER_TIMEOUT_SECONDS = 5.0


def request_handover(signal: Signal, session: str) -> None:
    for topic in (request_topic(session), HANDOVER_TOPIC):
        with suppress(OSError, OrtetError):  # a hint
            signal.notify(topic)


def is_shared_store(hub: Hub) -> bool:
    """Whether processes of other hosts use the same catalog."""
    return hub.url != str(hub.root)


class LeaseRequest:
    """One that asks for a session, until it has it: by signal, then by a row as well."""

    def __init__(self, hub: Hub, session: str) -> None:
        self._hub = hub
        self._session = session
        self._sent_count = 0

    def send(self) -> float:
        """How long to wait for an answer before asking again, in seconds."""
        hub = self._hub
        request_handover(hub.signal, self._session)
        self._sent_count += 1
        if self._sent_count == 1:
            return FIRST_RETRY_SECONDS
        if is_shared_store(hub):
            with suppress(OrtetError):  # a hint, too
                hub.catalog.put_row(_REQUEST_ROW_KIND, self._session, b"")
        return RETRY_SECONDS

    def __enter__(self) -> LeaseRequest:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """It was given, which is told; or it is not waited for any more."""
        if self._sent_count and error is None:
            with suppress(OSError, OrtetError):  # a hint
                self._hub.signal.notify(received_topic(self._session))
        if self._sent_count > 1 and is_shared_store(self._hub):
            with suppress(OrtetError):
                self._hub.catalog.drop_row(_REQUEST_ROW_KIND, self._session)


class LeaseRequests:
    """What others ask for by rows, as a lender sees it. An asker writes its row again and again;
    how long one has not changed is measured here, since clocks of hosts differ."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._versions: dict[str, tuple[int, float]] = {}  # version, and since when

    def requested_sessions(self) -> set[str]:
        """Those asked for now; rows whose askers are gone are dropped."""
        if not is_shared_store(self._hub):
            return set()
        seen, now = self._versions, time.monotonic()
        self._versions = {}
        for row in self._hub.catalog.rows(_REQUEST_ROW_KIND):
            version, since = seen.get(row.key, (0, now))
            if version != row.version:
                since = now
            if now - since < _STALE_REQUEST_SECONDS:
                self._versions[row.key] = (row.version, since)
            else:
                self._hub.catalog.drop_row(_REQUEST_ROW_KIND, row.key)
        return set(self._versions)


def request_topic(session: str) -> str:
    """The topic under which one session is asked for."""
    return f"{HANDOVER_TOPIC}:{session}"


def requested_session(topic: str) -> str:
    """The session of a topic under which one is asked for; "" of any other."""
    word, _, session = topic.partition(":")
    return session if word == HANDOVER_TOPIC and ":" not in session else ""


def released_topic(session: str) -> str:
    """The topic under which a lender says that it has let go."""
    return f"{HANDOVER_TOPIC}:left:{session}"


def received_topic(session: str) -> str:
    """The topic under which who asked for it says that it came."""
    return f"{HANDOVER_TOPIC}:taken:{session}"


def acquire_or_request_lease(hub: Hub, session: str, owner: Callable[[], str], host: str) -> Lease:
    """The lease on a session; from a lender as soon as it lets go. Refused("lease_held") when it
    does not, or another holds it. Lenders know better how long to wait for one another."""
    name, topic = f"session:{session}", released_topic(session)
    until = time.monotonic() + _HANDOVER_TIMEOUT_SECONDS
    with LeaseRequest(hub, session) as request:
        while True:
            try:
                return acquire_lease(hub.catalog, name, owner(), host)
            except Refused as error:
                rest = until - time.monotonic()
                lent = is_handover_owner(str(error.details.get("owner", "")))
                if error.kind != "lease_held" or hub.allows_lease_handover or not lent or rest <= 0:
                    raise
            token = hub.signal.token(topic)
            hub.signal.wait(topic, token, min(rest, request.send()))


def is_handover_owner(owner: str) -> bool:
    return owner.rpartition(":")[2].startswith(HANDOVER_OWNER_PREFIX)


def resume_handed_over(
    sessions: SessionManager,
    row: SessionRow,
    *,
    location: FilesLocation = NO_FILES,
    options: OpenOptions = DEFAULT_OPTIONS,
) -> Session:
    """Go on with a session that is handed from process to process: no event says so, its state
    stays as it is, and calls of tools stay open for whoever makes them."""
    with sessions._lease_while_opening(row) as lease:
        row = sessions.table.get(row.id)  # it may have moved on until the lease was ours
        check_fits(row, location, options.parent)
        session = sessions.resume(row, lease, options.resolve_profile(row.profile))
        session.drain_inbox()
    return session


def release_for_handover(session: Session) -> None:
    """Let go of it likewise. One that is not paused yet becomes so, once: who opens it otherwise
    must not take it for one whose process was killed."""
    if session.held_lease.is_released:
        return
    if session.status != PAUSED:
        session.pause()
        return
    from ortet.sessions.history.cross_host_files import (
        commit_before_release,  # here: it asks who is across
    )

    try:
        session.drain_inbox()
        commit_before_release(session)
        session._budget.settle()
        session.release()
    except Refused:  # another process has taken over
        session.abandon()
