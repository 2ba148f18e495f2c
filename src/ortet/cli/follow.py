"""Follows a session: yields its events as they are written, also by other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.events import Event

_POLL_SECONDS = 5.0
"""A follower polls after this time, because a signal is only a hint."""


class Follower:
    """Yields each event of a session once.

    It waits until a writer on this host signals, and reads only new events. If the session was
    restored, it continues after the last event that both timelines share.
    """

    def __init__(self, hub: Hub, session: str) -> None:
        self._hub = hub
        self._id = session
        self._topic = f"session:{session}"
        # Taken before the first read, so that no event is missed.
        self._token = hub.signal.token(self._topic)
        self._view = hub.get(session)
        self._position = self._current_position()
        self._last_seq = 0
        self._shown_inbox_events: set[tuple[str, int, str]] = set()

    def first(self, limit: int | None, kinds: Sequence[str]) -> list[Event]:
        """Return the existing events, or the last `limit` of them."""
        line = self._view.internals.event_log
        if limit is not None and not kinds:
            found = [*line.newest(limit), *self._inbox_events()][-limit:]
            self._last_seq = line.tip().seq
            return found
        found = [event for event in self._new_events() if not kinds or event.kind in kinds]
        return found[-limit:] if limit else found

    def wait(self, kinds: Sequence[str]) -> list[Event]:
        """Wait for a signal or the poll interval, and return new events. There may be none."""
        self._hub.signal.wait(self._topic, self._token, _POLL_SECONDS)
        self._token = self._hub.signal.token(self._topic)
        place = self._current_position()
        if place != self._position:
            self._switch_timeline()
            self._position = place
        return [event for event in self._new_events() if not kinds or event.kind in kinds]

    def _new_events(self) -> Iterator[Event]:
        for event in self._view.internals.event_log.events(self._last_seq):
            self._last_seq = event.seq
            yield event
        yield from self._inbox_events()

    def _inbox_events(self) -> Iterator[Event]:
        """Yield events that wait in the inbox for the writer, each once."""
        from ortet.sessions.writing.inbox import pending_events

        for event in pending_events(self._hub.catalog, self._id):
            mark = event.kind, event.time, event.actor
            if mark not in self._shown_inbox_events:
                self._shown_inbox_events.add(mark)
                yield event

    def _current_position(self) -> tuple[str, bytes]:
        """Return the timeline and the head. Rows before a new head may be trimmed."""
        from ortet.sessions.table import SessionTable

        row = SessionTable(self._hub.catalog).get(self._id)
        head = self._hub.catalog.head(f"branch:{row.branch}")
        return row.timeline, head.oid if head else b""

    def _switch_timeline(self) -> None:
        from ortet.journal.event_log import last_shared_seq

        before = self._view.internals.event_log.timeline_spans()
        self._view = self._hub.get(self._id)
        self._last_seq = min(
            self._last_seq, last_shared_seq(before, self._view.internals.event_log.timeline_spans())
        )
