"""Legal holds, and the check that a store supports erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import check_text
from ortet.backends.sweep_epoch import EpochFencedCatalog
from ortet.errors import Refused, Unsupported
from ortet.sessions.table import SessionRow

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext

_HOLD_KIND = "hold"


class Hold(msgspec.Struct, frozen=True):
    """A legal hold: nothing of this session may be erased, archived or removed.

    Attributes:
        session: Id of the session.
        why: Reason for the hold.
        by: Who set it.
        time: When it was set, in ns since 1970.
    """

    session: str
    why: str
    by: str
    time: int


def hold(sessions: SessionManager, id_: str, why: str) -> Hold:
    """Put a session on hold; see `Governance.hold`."""
    check_text(why=why)
    store, row = sessions.store, sessions.table.get(id_)
    record = Hold(row.id, why, store.author, store.clock.now_ns())
    store.catalog.put_row(_HOLD_KIND, row.id, encode(record))
    return record


def hold_of(store: StoreContext, id_: str) -> Hold | None:
    """Return the hold of a session, or None."""
    row = store.catalog.row(_HOLD_KIND, id_)
    return decode(Hold, row.value) if row else None


def release_hold(store: StoreContext, id_: str) -> None:
    """End the hold of a session; see `Governance.release`."""
    store.catalog.drop_row(_HOLD_KIND, id_)


def check_erasure_supported(store: StoreContext) -> None:
    """Raise Unsupported if other hosts share the store.

    Another host may have the erased data in memory and write it again.
    """
    if isinstance(store.catalog, EpochFencedCatalog):
        raise Unsupported(
            "shared_store",
            "in a store that hosts share, others may have what is to be erased in memory, and "
            "write it again: remove the whole session with `ortet session rm`, and an hour later "
            "free what only it had with `ortet sweep --expire 0s`",
        )
    store.objects.require_exclusive("an erasure")


def check_hold(store: StoreContext, row: SessionRow) -> None:
    """Raise Refused("on_hold") if the session is on hold."""
    held = hold_of(store, row.id)
    if held is not None:
        raise Refused(
            "on_hold",
            f"session {row.name!r} is on hold ({held.why or 'no reason given'}, by {held.by}): "
            "release it first",
            session=row.id,
        )
