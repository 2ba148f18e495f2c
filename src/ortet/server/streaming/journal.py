"""The journal of a session as it grows, and what is left for its writer meanwhile.

An event has the id TIMELINE:SEQ. A session that is restored goes on with another timeline, which
begins somewhere on the one before: then `moved` says behind which event the stream goes on, and
what the client has behind that one is not true of the session any more.
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
from ortet.journal.event_log import Line, Span, path_to, shared_by
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.sse import Follow, Page, Source, Told, cursor_of, tell
from ortet.server.streaming.streams import Streams
from ortet.sessions.history.participants import line_of
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.inbox import letters

_EVENTS = 64
_BYTES = 1 << 18
"""Of a page, about."""
_CURSOR = re.compile(r"(?:([0-9a-f]{32}):)?([0-9]{1,15})(?::([0-9a-f-]{1,64}))?\Z")


class Place(msgspec.Struct, frozen=True):
    """Where a client is. Without a timeline: at an event of the present one. `letter` is the last
    one that it has seen of those that wait for the writer."""

    timeline: str = ""
    seq: int = 0
    letter: str = ""

    def __str__(self) -> str:
        place = f"{self.timeline}:{self.seq}" if self.timeline else f"{self.seq}"
        return f"{place}:{self.letter}" if self.letter else place


def parse_place(text: str) -> Place:
    if not text:
        return Place()
    found = _CURSOR.match(text)
    if found is None:
        raise Invalid(
            "bad_cursor", f"{text[:100]!r} is no place in a journal: give the id of an event"
        )
    return Place(found[1] or "", int(found[2]), found[3] or "")


class JournalSource(Source):
    """`kinds`: only these events; none: all."""

    def __init__(
        self, streams: Streams, rooms: Rooms, row: SessionRow, kinds: frozenset[str]
    ) -> None:
        self.topics = (f"session:{row.id}", f"branch:{row.branch}")
        self._streams = streams
        self._rooms = rooms
        self._id = row.id
        self._kinds = kinds

    def wanted(self, told: Told) -> bool:
        return not self._kinds or not told.kind or told.kind in self._kinds

    def last(self, count: int) -> Place:
        """The place behind which there are so many events."""
        with self._rooms.hub() as hub:
            line = _line(hub, self._id)
            return _on(line.path(), max(0, line.tip().seq - count))

    async def page(self, cursor: Place) -> Page:
        key = ("journal", id(self._rooms), self._id, cursor)
        return await self._streams.read(key, partial(self._read, cursor))

    def _read(self, cursor: Place) -> Page:
        with self._rooms.hub() as hub:
            line = _line(hub, self._id)
            path, told, size = line.path(), list[Told](), 0
            cursor, moved = _found(hub, path, cursor)
            if moved:
                about = {"session": self._id, "timeline": line.timeline, "after": cursor.seq}
                told.append(tell(about, id=str(cursor), name="moved"))
            for place, one in _news(hub, line, self._id, cursor):
                cursor = place
                told.append(one)
                size += len(one.frame)
                if len(told) >= _EVENTS or size >= _BYTES:
                    return Page(told, cursor, more=True)
            return Page(told, cursor)


def _line(hub: Hub, id_: str) -> Line:
    minds = hub._minds()
    return line_of(minds, minds.roll.get(id_))[0]


def _news(hub: Hub, line: Line, session: str, cursor: Place) -> Iterator[tuple[Place, Told]]:
    """Events behind a place, then letters, each with the place behind it."""
    for event in line.events(cursor.seq, cursor.seq + _EVENTS):
        cursor = Place(event.timeline, event.seq, cursor.letter)
        yield cursor, tell(event_data(event), id=str(cursor), kind=event.kind)
    for key, event in letters(hub.catalog, session, cursor.letter):
        cursor = msgspec.structs.replace(cursor, letter=key)
        yield cursor, tell(event_data(event), id=str(cursor), name="waiting", kind=event.kind)


def _found(hub: Hub, path: Sequence[Span], cursor: Place) -> tuple[Place, bool]:
    """The place on the line as it is now, and whether that is another than the client knows."""
    if not cursor.timeline:
        seq = min(cursor.seq, path[-1].upto if path else cursor.seq)
    elif before := path_to(hub.catalog, cursor.timeline, cursor.seq):
        seq = min(cursor.seq, shared_by(before, path))
    else:  # of another host, sealed in commits, or of a session that was erased
        seq = cursor.seq if path and cursor.seq <= path[0].after else 0
    moved = bool(cursor.timeline) and seq < cursor.seq
    return _on(path, seq, cursor.letter), moved


def _on(path: Sequence[Span], seq: int, letter: str = "") -> Place:
    """An event by its number on a line that leads through it."""
    for span in path:
        if span.after < seq <= span.upto:
            return Place(span.timeline, seq, letter)
    return Place("", seq, letter)


class FollowJournal(Follow, frozen=True):
    """`last`: begin with so many of the newest events; without it, and without `after`, with the
    first. `kinds`: only events of these."""

    last: Annotated[int, msgspec.Meta(ge=0, le=10**9)] | None = None
    kinds: list[str] = []


async def journal_stream(streams: Streams, request: Request, ask: FollowJournal) -> Response:
    """The journal of a session as it grows, and (`waiting`) what is left for its writer. `moved`:
    it was restored, and goes on behind event `after`."""
    row = await streams.row(request, request.path_params["session"])
    source = JournalSource(streams, streams.rooms(request), row, frozenset(ask.kinds))
    text = cursor_of(request, ask)
    place = parse_place(text)
    if not text and ask.last is not None:
        place = await streams.in_thread(partial(source.last, ask.last))
    return await streams.answer(request, source, place, ask.heartbeat)
