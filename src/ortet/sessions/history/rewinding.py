"""Rewind to before an event and append other events, on a new timeline in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortet.backends.base import Append
from ortet.errors import NotFound
from ortet.ids import Oid
from ortet.journal.events import Draft, Event, Tip
from ortet.objects.base import Kind
from ortet.sessions.history.participants import row_on_new_timeline, start_of
from ortet.sessions.history.rewind import commit_at
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.sessions.session import Session

_PRESERVED_KINDS = frozenset(
    {
        *("note", "goal", "plan", "step", "question", "answer", "thought", "comment"),
        *("fact", "lesson", "episode", "decision", "artifact", "environment", "compaction"),
    }
)
"""Kinds of events that are kept when a message before them is removed.

Effects and spends belong to the family and are kept anyway.
"""


@retry_on_sweep
def rewind_before_event(
    session: Session, seq: int, replacements: Callable[[], Sequence[Draft]] = lambda: ()
) -> None:
    """Move the session to before event `seq` and append replacement events.

    Messages from `seq` on are left behind. Facts, decisions and custom records are kept. The commit
    made first is the way back.

    Args:
        seq: the event; not the first one.
        replacements: gives the events to append. It is called inside `hub.writing()`.

    Raises:
        NotFound: "no_event" if there is no such event.
    """
    sessions, hub, host = session._sessions, session.hub, session._participant
    if not 1 < seq <= session._writer.tip.seq:
        raise NotFound("no_event", f"event {seq} of {session.name!r} cannot be gone back before")
    later = [
        event
        for event in session.events(seq)
        if event.kind in _PRESERVED_KINDS or "." in event.kind
    ]
    with hub.writing():
        session.commit("before messages were taken back")
        point = commit_at(sessions, session.row, session.event_log, seq - 1)
        before = next(iter(session.event_log.rows(seq - 2, seq - 1)))
        given = replacements()
        timeline = start_of(sessions, row_on_new_timeline(sessions, session.row, point))
        tip, rows = sessions.chain.tip(before), []
        for draft in [*given, *_renumbered_drafts(later, seq + len(given))]:
            row, event = sessions.chain.make(tip, session._writer.redacted(draft), session._now())
            tip = Tip(event.seq, event.hash, event.time)
            rows.append(row)
        with host.with_timeline(timeline, Append(timeline.id, rows)):
            together = host.prepare_move(point)
        hub.catalog.move(
            [],
            verb="rewind",
            actor=hub.author,
            lease=together.lease,
            rows=together.rows,
            timelines=together.timelines,
            appends=together.appends if rows else [],
        )
        closing, host._on_moved = host._on_moved, session._switch_timeline
        try:
            host.finish_move()  # a call without its result stays open: another result may come
        finally:
            host._on_moved = closing
        host.dirty = True


def _renumbered_drafts(events: Sequence[Event], seq: int) -> list[Draft]:
    """Return drafts of the events with new numbers from `seq` on."""
    moved = {event.seq: seq + at for at, event in enumerate(events)}
    drafts = []
    for event in events:
        data = event.data
        if event.kind == "compaction":
            data = {**data, "before": moved.get(data["before"], data["before"])}
        refs = [(Oid(oid), Kind(kind)) for oid, kind in event.refs]
        drafts.append(Draft(event.kind, data, event.actor, refs, event.version))
    return drafts
