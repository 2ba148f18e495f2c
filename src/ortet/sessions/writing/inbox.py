"""The inbox of a session: messages from processes that do not hold its lease.

Anyone may put a message into the inbox as a catalog row. The holder of the lease moves messages
into the journal: the event and the removal of the row are one transaction. So no message is lost or
duplicated, and senders never conflict with the writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.ids import Clock, Random, uuid7
from ortet.journal.event_chain import encode_body
from ortet.journal.events import Draft, Event
from ortet.sessions.writing.event_writer import EventWriter

_PAGE = 500


class InboxMessage(msgspec.Struct, frozen=True):
    """A message that becomes an event. Stored as a map, so that later releases may add keys."""

    kind: str
    data: dict[str, Any]
    actor: str
    time: int


def put(catalog: Catalog, session: str, draft: Draft, *, clock: Clock, random: Random) -> Event:
    """Put a message into the inbox. It is durable on return.

    Returns:
        The event that readers see until the message is in the journal.
    """
    encode_body(draft)  # raises here, at the sender, if the data cannot be recorded
    letter = InboxMessage(draft.kind, draft.data, draft.actor, clock.now_ns())
    failpoint("inbox.before-put")
    catalog.put_row(kind_of(session), uuid7(clock, random), encode(letter))
    failpoint("inbox.after-put")
    return _event(letter)


def pending_events(catalog: Catalog, session: str) -> Iterator[Event]:
    """Iterate over the messages that are not in the journal yet, in order of arrival."""
    return (event for _, event in pending_messages(catalog, session))


def pending_messages(
    catalog: Catalog, session: str, after: str = ""
) -> Iterator[tuple[str, Event]]:
    """Iterate over the pending messages with their keys, starting behind the key `after`."""
    while page := catalog.rows(kind_of(session), after, _PAGE):
        yield from ((row.key, _event(decode(InboxMessage, row.value))) for row in page)
        after = page[-1].key


def drop(catalog: Catalog, session: str, key: str) -> None:
    """Delete a message without recording it."""
    catalog.drop_row(kind_of(session), key)


class Inbox:
    """The inbox of a session, used by the holder of its lease."""

    def __init__(self, catalog: Catalog, session: str, writer: EventWriter) -> None:
        self._catalog = catalog
        self._session = session
        self._writer = writer
        self._lock = Lock()  # two threads of one writer must not take the same message

    def drain(self) -> int:
        """Append all pending messages to the journal and return their number."""
        taken = 0
        with self._lock:
            while page := self._catalog.rows(kind_of(self._session), limit=_PAGE):
                failpoint("inbox.before-drain")
                self._append_page(page)
                failpoint("inbox.after-drain")
                taken += len(page)
        return taken

    def _append_page(self, page: list[CatalogRow]) -> None:
        letters = [decode(InboxMessage, row.value) for row in page]
        gone = [RowChange(row.kind, row.key, None, expect=row.version) for row in page]
        drafts = [
            Draft(letter.kind, {**letter.data, "sent": letter.time}, letter.actor)
            for letter in letters
        ]
        self._writer.add(*drafts, rows=gone)


def kind_of(session: str) -> str:
    return f"inbox/{session}"


def _event(message: InboxMessage) -> Event:
    return Event(
        seq=0,
        kind=message.kind,
        time=message.time,
        actor=message.actor,
        data=message.data,
        hash=b"",
        waiting=True,
    )
