"""The journal of a session as a stream, with the events that wait in its inbox.

The id of an event is TIMELINE:SEQ. A restored session continues on another timeline, which begins
at an event of the previous timeline. Then an event `moved` names the event after which the stream
continues. Events of the previous timeline after that one no longer belong to the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.cli.session_args import event_data
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.journal.event_log import EventLog, TimelineSpan, last_shared_seq, timeline_spans_to
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.sse import (
    Follow,
    StreamEvent,
    StreamPage,
    StreamSource,
    make_event,
    request_cursor,
)
from ortet.server.streaming.streams import Streams
from ortet.sessions.history.load import load_event_log
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.inbox import pending_messages

_EVENTS_PER_PAGE = 64
_BYTES_PER_PAGE = 1 << 18
"""Approximate size of a page."""
_CURSOR = re.compile(r"(?:([0-9a-f]{32}):)?([0-9]{1,15})(?::([0-9a-f-]{1,64}))?\Z")


class JournalCursor(msgspec.Struct, frozen=True):
    """The position of a client in the journal. Without a timeline, `seq` is on the present one.

    `letter` is the key of the last message that the client has seen of those waiting for the
    writer.
    """

    timeline: str = ""
    seq: int = 0
    letter: str = ""

    def __str__(self) -> str:
        place = f"{self.timeline}:{self.seq}" if self.timeline else f"{self.seq}"
        return f"{place}:{self.letter}" if self.letter else place


def parse_journal_cursor(text: str) -> JournalCursor:
    """Return the cursor of an event id, or raise Invalid(`bad_cursor`)."""
    if not text:
        return JournalCursor()
    match = _CURSOR.match(text)
    if match is None:
        raise Invalid(
            "bad_cursor", f"{text[:100]!r} is no place in a journal: give the id of an event"
        )
    return JournalCursor(match[1] or "", int(match[2]), match[3] or "")


class JournalSource(StreamSource):
    """The journal of a session as a stream. `kinds` selects event kinds; empty means all."""

    def __init__(
        self, streams: Streams, pool: SessionPool, row: SessionRow, kinds: frozenset[str]
    ) -> None:
        self.topics = (f"session:{row.id}", f"branch:{row.branch}")
        self._streams = streams
        self._pool = pool
        self._id = row.id
        self._kinds = kinds

    def includes(self, event: StreamEvent) -> bool:
        return not self._kinds or not event.kind or event.kind in self._kinds

    def cursor_before_last(self, count: int) -> JournalCursor:
        """Return the position before the last `count` events."""
        with self._pool.hub() as hub:
            line = _event_log(hub, self._id)
            return _cursor_at(line.timeline_spans(), max(0, line.tip().seq - count))

    async def page(self, cursor: JournalCursor) -> StreamPage:
        key = ("journal", id(self._pool), self._id, cursor)
        return await self._streams.read(key, partial(self._read, cursor))

    def _read(self, cursor: JournalCursor) -> StreamPage:
        with self._pool.hub() as hub:
            line = _event_log(hub, self._id)
            path, events, size = line.timeline_spans(), list[StreamEvent](), 0
            cursor, moved = _locate_cursor(hub, path, cursor)
            if moved:
                about = {"session": self._id, "timeline": line.timeline, "after": cursor.seq}
                events.append(make_event(about, id=str(cursor), name="moved"))
            for place, event in _new_events(hub, line, self._id, cursor):
                cursor = place
                events.append(event)
                size += len(event.frame)
                if len(events) >= _EVENTS_PER_PAGE or size >= _BYTES_PER_PAGE:
                    return StreamPage(events, cursor, more=True)
            return StreamPage(events, cursor)


def _event_log(hub: Hub, id_: str) -> EventLog:
    minds = hub.internals.session_manager
    return load_event_log(minds.services, minds.table.get(id_))[0]


def _new_events(
    hub: Hub, log: EventLog, session: str, cursor: JournalCursor
) -> Iterator[tuple[JournalCursor, StreamEvent]]:
    """Yield the events after a position, then waiting messages, each with the position after it."""
    for event in log.events(cursor.seq, cursor.seq + _EVENTS_PER_PAGE):
        cursor = JournalCursor(event.timeline, event.seq, cursor.letter)
        yield cursor, make_event(event_data(event), id=str(cursor), kind=event.kind)
    for key, event in pending_messages(hub.catalog, session, cursor.letter):
        cursor = msgspec.structs.replace(cursor, letter=key)
        yield cursor, make_event(event_data(event), id=str(cursor), name="waiting", kind=event.kind)


def _locate_cursor(
    hub: Hub, path: Sequence[TimelineSpan], cursor: JournalCursor
) -> tuple[JournalCursor, bool]:
    """Return the position on the present timeline, and True if it is before the cursor."""
    if not cursor.timeline:
        seq = min(cursor.seq, path[-1].upto if path else cursor.seq)
    elif before := timeline_spans_to(hub.catalog, cursor.timeline, cursor.seq):
        seq = min(cursor.seq, last_shared_seq(before, path))
    else:  # a timeline of another host that is sealed in commits, or of an erased session
        seq = cursor.seq if path and cursor.seq <= path[0].after else 0
    moved = bool(cursor.timeline) and seq < cursor.seq
    return _cursor_at(path, seq, cursor.letter), moved


def _cursor_at(path: Sequence[TimelineSpan], seq: int, letter: str = "") -> JournalCursor:
    """Return the position of event `seq` on a path of timelines."""
    for span in path:
        if span.after < seq <= span.upto:
            return JournalCursor(span.timeline, seq, letter)
    return JournalCursor("", seq, letter)


class FollowJournal(Follow, frozen=True):
    """`last`: begin with this number of the newest events. Without `last` and `after`, begin with
    the first event. `kinds`: only events of these kinds.
    """

    last: Annotated[int, msgspec.Meta(ge=0, le=10**9)] | None = None
    kinds: list[str] = []


async def journal_stream(streams: Streams, request: Request, ask: FollowJournal) -> Response:
    """Stream the journal of a session, and the events that wait in its inbox (`waiting`). An event
    `moved` says that the session was restored, and that the stream continues after the event
    `after`.
    """
    row = await streams.row(request, request.path_params["session"])
    source = JournalSource(streams, streams.session_pool(request), row, frozenset(ask.kinds))
    text = request_cursor(request, ask)
    place = parse_journal_cursor(text)
    if not text and ask.last is not None:
        place = await streams.in_thread(partial(source.cursor_before_last, ask.last))
    return await streams.answer(request, source, place, ask.heartbeat)
