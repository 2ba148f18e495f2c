"""Events of a session: all of them, those of programs' own kinds, and comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from ortet.errors import NotFound
from ortet.hub.hub import hub_of
from ortet.journal.events import Event
from ortet.server.operations.registry import operation
from ortet.server.pagination import (
    Page,
    Paged,
    cursor_number,
    decode_cursor,
    encode_cursor,
    paginate,
)
from ortet.server.schemas import (
    EventInfo,
    NonEmptyText,
    Number,
    OperationRequest,
    event_of,
    recorded_event_info,
)
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

_EVENTS_PER_READ = 256


class ListEvents(Paged, frozen=True):
    """`kind`: only events of this kind; the parameter may be repeated. `since` and `upto`: numbers
    of events. `newest`: the newest events first.
    """

    kind: list[str] = []
    since: Number = 0
    upto: Number | None = None
    newest: bool = False


@operation("GET", "/sessions/{session}/events")
def list_events(view: SessionReader, ask: ListEvents) -> Page[EventInfo]:
    """List the events of a session in order, or the newest first. Events of other processes that
    wait in the inbox are at the end of the last page, without a number.
    """
    listed = _backwards(view, ask) if ask.newest else _forwards(view, ask)
    items: list[Event] = []
    for event in listed:
        if ask.kind and event.kind not in ask.kind:
            continue
        if len(items) == ask.limit:
            # Waiting messages have no number to continue from, so they go with the page before.
            last = next((one for one in reversed(items) if not one.waiting), None)
            if last is not None and not event.waiting:
                return Page([event_of(one) for one in items], encode_cursor("event", last.seq))
        items.append(event)
    return Page([event_of(one) for one in items])


def _cursor_seq(ask: ListEvents) -> int | None:
    if ask.after is None:
        return None
    return cursor_number(decode_cursor(ask.after, 2)[1])


def _forwards(view: SessionReader, ask: ListEvents) -> Iterator[Event]:
    seq = _cursor_seq(ask)
    return view.events(max(ask.since - 1, 0) if seq is None else seq, ask.upto)


def _backwards(view: SessionReader, ask: ListEvents) -> Iterator[Event]:
    """Yield events from the newest back, in batches, because the log can only be read forwards."""
    seq = _cursor_seq(ask)
    tip = view.internals.event_log.tip().seq
    if seq is None and ask.upto is None:
        yield from [event for event in view.events(tip) if event.waiting]
    upto = min(tip, seq - 1 if seq is not None else tip, tip if ask.upto is None else ask.upto)
    least = max(ask.since - 1, 0)
    while upto > least:
        start = max(upto - _EVENTS_PER_READ, least)
        yield from reversed(list(view.events(start, upto)))
        upto = start


class OneEvent(OperationRequest, frozen=True):
    seq: Number


@operation("GET", "/sessions/{session}/events/{seq:int}")
def show_event(view: SessionReader, ask: OneEvent) -> EventInfo:
    """Show an event by its number."""
    event = next(iter(view.events(max(ask.seq - 1, 0), ask.seq)), None)
    if event is None or event.seq != ask.seq:
        raise NotFound("no_event", f"{view.name} has no event {ask.seq}: list them to see what is")
    return event_of(event)


class ListRecords(Paged, frozen=True):
    kind: str | None = None


@operation("GET", "/sessions/{session}/records")
def records(view: SessionReader, ask: ListRecords) -> Page[EventInfo]:
    """List the events of programs' own kinds, or of one such kind."""
    return paginate(view.records(ask.kind), ask, lambda one: one.seq).map_items(event_of)


class Record(OperationRequest, frozen=True):
    """`kind`: a kind of your program, such as myapp.ticket. `version`: the version of the schema of
    `data`.
    """

    kind: Annotated[str, msgspec.Meta(min_length=3, max_length=200)]
    data: dict[str, Any]
    version: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


@operation("POST", "/sessions/{session}/records", status=201)
def record(session: Session, ask: Record) -> EventInfo:
    """Record an event of your program's own kind."""
    return recorded_event_info(session, session.record(ask.kind, ask.data, version=ask.version))


@operation("GET", "/sessions/{session}/comments")
def comments(view: SessionReader, ask: Paged) -> Page[EventInfo]:
    """List the comments of people on a session. Comments are not part of the conversation."""
    return paginate(view.conversation.comments(), ask, lambda one: (one.seq, one.time)).map_items(
        event_of
    )


class Comment(OperationRequest, frozen=True):
    """`by`: the author of the comment, by default the name of the caller."""

    text: NonEmptyText
    by: str = ""


@operation("POST", "/sessions/{session}/comments", status=201)
def comment(view: SessionReader, ask: Comment) -> EventInfo:
    """Add a comment to a session. No lease is needed, so a comment never conflicts with another
    writer.
    """
    return event_of(hub_of(view).comment(view.id, ask.text, by=ask.by))
