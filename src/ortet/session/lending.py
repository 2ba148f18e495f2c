"""Sessions that are lent: a server keeps one open between requests, and lets it go when another
process asks for it, and nothing runs in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ortet.backend.abc import Lease, Signal
from ortet.errors import OrtetError, Refused
from ortet.session.leases import take

if TYPE_CHECKING:
    from ortet.session.hub import Hub

LENT = "lent-"
"""How the last part of a lender's name begins: who is refused can tell that asking helps."""
WANTED = "rooms"
"""The topic under which lenders are asked; others of theirs begin with it."""
SOON = 0.25
"""Seconds after which a lender is asked again."""
_PATIENCE = 5.0


def ask_for(signal: Signal, session: str) -> None:
    for topic in (wanted(session), WANTED):
        with suppress(OSError, OrtetError):  # a hint
            signal.notify(topic)


def wanted(session: str) -> str:
    """The topic under which one session is asked for."""
    return f"{WANTED}:{session}"


def left(session: str) -> str:
    """The topic under which a lender says that it has let go."""
    return f"{WANTED}:left:{session}"


def borrow(hub: Hub, session: str, owner: Callable[[], str], host: str) -> Lease:
    """The lease on a session; from a lender as soon as it lets go. Refused("lease_held") when it
    does not, or another holds it. Lenders know better how long to wait for one another."""
    name, topic = f"session:{session}", left(session)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return take(hub.catalog, name, owner(), host)
        except Refused as error:
            rest = until - time.monotonic()
            lent = is_lent(str(error.details.get("owner", "")))
            if error.kind != "lease_held" or hub.lends or not lent or rest <= 0:
                raise
        token = hub.signal.token(topic)
        ask_for(hub.signal, session)
        hub.signal.wait(topic, token, min(rest, SOON))


def is_lent(owner: str) -> bool:
    return owner.rpartition(":")[2].startswith(LENT)
