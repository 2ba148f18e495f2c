"""Sessions that are lent: a server keeps one open between requests, and lets it go when another
process asks for it, and nothing runs in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backends.base import Lease, Signal
from ortet.errors import OrtetError, Refused
from ortet.sessions.profiles import USUAL, Manner
from ortet.sessions.starting import NOWHERE, Place, check_fits
from ortet.sessions.table import PAUSED
from ortet.store.lease import take

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import Sessions
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow

LENT = "lent-"
"""How the last part of a lender's name begins: who is refused can tell that asking helps."""
WANTED = "rooms"
"""The topic under which lenders are asked; others of theirs begin with it."""
SOON = 0.25
"""Seconds after which a lender is asked again."""
AT_FIRST = 0.05
"""The same of the first time: a signal that reaches the lender has done so by then."""
_WANTED_ROW = "wanted"
"""Rows of this kind, by session, ask lenders of other hosts, whom no signal may reach."""
_STALE = 60.0
"""Seconds after which a row that does not change is of an asker who is gone."""
_PATIENCE = 5.0


def ask_for(signal: Signal, session: str) -> None:
    for topic in (wanted(session), WANTED):
        with suppress(OSError, OrtetError):  # a hint
            signal.notify(topic)


def is_across(hub: Hub) -> bool:
    """Whether processes of other hosts use the same catalog."""
    return hub.url != str(hub.root)


class Request:
    """One that asks for a session, until it has it: by signal, then by a row as well."""

    def __init__(self, hub: Hub, session: str) -> None:
        self._hub = hub
        self._session = session
        self._asked = 0

    def ask(self) -> float:
        """How long to wait for an answer before asking again, in seconds."""
        hub = self._hub
        ask_for(hub.signal, self._session)
        self._asked += 1
        if self._asked == 1:
            return AT_FIRST
        if is_across(hub):
            with suppress(OrtetError):  # a hint, too
                hub.catalog.put_row(_WANTED_ROW, self._session, b"")
        return SOON

    def __enter__(self) -> Request:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """It was given, which is told; or it is not waited for any more."""
        if self._asked and error is None:
            with suppress(OSError, OrtetError):  # a hint
                self._hub.signal.notify(taken(self._session))
        if self._asked > 1 and is_across(self._hub):
            with suppress(OrtetError):
                self._hub.catalog.drop_row(_WANTED_ROW, self._session)


class Requests:
    """What others ask for by rows, as a lender sees it. An asker writes its row again and again;
    how long one has not changed is measured here, since clocks of hosts differ."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._seen: dict[str, tuple[int, float]] = {}  # version, and since when

    def sessions(self) -> set[str]:
        """Those asked for now; rows whose askers are gone are dropped."""
        if not is_across(self._hub):
            return set()
        seen, now = self._seen, time.monotonic()
        self._seen = {}
        for row in self._hub.catalog.rows(_WANTED_ROW):
            version, since = seen.get(row.key, (0, now))
            if version != row.version:
                since = now
            if now - since < _STALE:
                self._seen[row.key] = (row.version, since)
            else:
                self._hub.catalog.drop_row(_WANTED_ROW, row.key)
        return set(self._seen)


def wanted(session: str) -> str:
    """The topic under which one session is asked for."""
    return f"{WANTED}:{session}"


def asked_for(topic: str) -> str:
    """The session of a topic under which one is asked for; "" of any other."""
    word, _, session = topic.partition(":")
    return session if word == WANTED and ":" not in session else ""


def left(session: str) -> str:
    """The topic under which a lender says that it has let go."""
    return f"{WANTED}:left:{session}"


def taken(session: str) -> str:
    """The topic under which who asked for it says that it came."""
    return f"{WANTED}:taken:{session}"


def borrow(hub: Hub, session: str, owner: Callable[[], str], host: str) -> Lease:
    """The lease on a session; from a lender as soon as it lets go. Refused("lease_held") when it
    does not, or another holds it. Lenders know better how long to wait for one another."""
    name, topic = f"session:{session}", left(session)
    until = time.monotonic() + _PATIENCE
    with Request(hub, session) as request:
        while True:
            try:
                return take(hub.catalog, name, owner(), host)
            except Refused as error:
                rest = until - time.monotonic()
                lent = is_lent(str(error.details.get("owner", "")))
                if error.kind != "lease_held" or hub.lends or not lent or rest <= 0:
                    raise
            token = hub.signal.token(topic)
            hub.signal.wait(topic, token, min(rest, request.ask()))


def is_lent(owner: str) -> bool:
    return owner.rpartition(":")[2].startswith(LENT)


def take_up(
    sessions: Sessions, row: SessionRow, *, place: Place = NOWHERE, manner: Manner = USUAL
) -> Session:
    """Go on with a session that is handed from process to process: no event says so, its state
    stays as it is, and calls of tools stay open for whoever makes them."""
    with sessions._leased(row) as lease:
        row = sessions.roll.get(row.id)  # it may have moved on until the lease was ours
        check_fits(row, place, manner.parent)
        session = sessions.resume(row, lease, manner.over(row.profile))
        session.take_in()
    return session


def hand_over(session: Session) -> None:
    """Let go of it likewise. One that is not paused yet becomes so, once: who opens it otherwise
    must not take it for one whose process was killed."""
    if session.holding.ended:
        return
    if session.status != PAUSED:
        session.pause()
        return
    from ortet.sessions.history.cross_host_files import leave_ready  # here: it asks who is across

    try:
        session.take_in()
        leave_ready(session)
        session._budget.settle()
        session.let_go()
    except Refused:  # another process has taken over
        session.give_up()
