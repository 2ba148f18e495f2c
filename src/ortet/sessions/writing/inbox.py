"""The second lane into a journal: what people say to a session while someone else writes to it.

A letter is a row that anyone may put down without a lease. The writer takes it into the journal,
event and end of the row in one transaction: no letter is lost, none comes twice, nobody conflicts.
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
from ortet.journal.events import Draft, Event, encode_body
from ortet.sessions.writing.event_writer import EventWriter

_PAGE = 500


class InboxMessage(msgspec.Struct, frozen=True):
    """An event to be. A map, so that later releases may add keys."""

    kind: str
    data: dict[str, Any]
    actor: str
    time: int


def put(catalog: Catalog, session: str, draft: Draft, *, clock: Clock, random: Random) -> Event:
    """Leave a letter; it is durable on return. Given back as the event readers see until then."""
    encode_body(draft)  # which says what cannot be recorded, to the one who wrote it
    letter = InboxMessage(draft.kind, draft.data, draft.actor, clock.now_ns())
    failpoint("inbox.before-put")
    catalog.put_row(kind_of(session), uuid7(clock, random), encode(letter))
    failpoint("inbox.after-put")
    return _event(letter)


def pending_events(catalog: Catalog, session: str) -> Iterator[Event]:
    """What is not in the journal yet, in the order it came."""
    return (event for _, event in pending_messages(catalog, session))


def pending_messages(
    catalog: Catalog, session: str, after: str = ""
) -> Iterator[tuple[str, Event]]:
    """The same, each with its key: those greater than `after`."""
    while page := catalog.rows(kind_of(session), after, _PAGE):
        yield from ((row.key, _event(decode(InboxMessage, row.value))) for row in page)
        after = page[-1].key


def drop(catalog: Catalog, session: str, key: str) -> None:
    """Throw a letter away unread."""
    catalog.drop_row(kind_of(session), key)


class Inbox:
    """The letters of a session, in the hands of its writer."""

    def __init__(self, catalog: Catalog, session: str, writer: EventWriter) -> None:
        self._catalog = catalog
        self._session = session
        self._writer = writer
        self._lock = Lock()  # two threads of one writer must not take the same letter

    def drain(self) -> int:
        """Take what is there into the journal; returns how many."""
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
