"""Commands journal and brief: the events of a session, and its briefing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.session_args import (
    event_data,
    event_line,
    find_session,
    read_session,
    session_argument,
)
from ortet.cli.terminal import output

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.events import Event

_POLL_SECONDS = 5.0
"""A follower polls after this time, because a signal is only a hint."""


@verb()
@session_argument
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show only the last N."
)
@click.option("-f", "--follow", is_flag=True, help="Show new events until interrupted.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated."
)
def journal(
    call: CliCall, session: str | None, *, limit: int | None, follow: bool, kind: tuple[str, ...]
) -> None:
    """List the events of a session, and follow new ones.

    Events that other processes leave in the inbox (a comment, an approval) are shown when they
    arrive, without a number, and again when the writer has added them to the journal. With --json
    --follow, each event is one object on a line. Ctrl-C ends it with 130.

    \b
    Example:
      ortet journal fix-42 -n 20
      ortet journal fix-42 --follow --kind message
    """
    follower = Follower(call.hub, find_session(call, session).id)
    events = follower.first(limit, kind)
    if not follow:
        call.output.emit([event_data(event) for event in events], map(event_line, events))
        return
    call.output.paged = False  # the output has no end
    while True:
        for event in events:
            call.output.emit(event_data(event), [] if call.output.json else [event_line(event)])
        sys.stdout.flush()
        events = follower.wait(kind)


@verb()
@session_argument
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    metavar="N",
    help="The approximate maximum number of tokens.",
)
@click.option(
    "--write", "directory", metavar="DIR", help="Write handover files into this directory instead."
)
def brief(call: CliCall, session: str | None, *, tokens: int, directory: str | None) -> None:
    """Print a briefing for whoever continues a session.

    With --write: feature_list.json, progress.md and BRIEFING.md, for the next worker.

    \b
    Example:
      ortet brief fix-42 --tokens 1000
      ortet brief fix-42 --write handover
    """
    view = read_session(call, session)
    if directory is not None:
        handover = view.handover(directory)
        names = sorted([*handover.written, *handover.unchanged])
        lines = [f"{'wrote' if name in handover.written else 'kept'} {name}" for name in names]
        call.output.emit({"session": view.id, **output.fields(handover)}, lines)
        return
    briefing = view.briefing(tokens)
    data = {"session": view.id, **output.fields(briefing)}
    call.output.emit(data, (output.safe(line) for line in briefing.markdown.splitlines()))


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
        log = self._view.internals.event_log
        if limit is not None and not kinds:
            events = [*log.newest(limit), *self._inbox_events()][-limit:]
            self._last_seq = log.tip().seq
            return events
        events = [event for event in self._new_events() if not kinds or event.kind in kinds]
        return events[-limit:] if limit else events

    def wait(self, kinds: Sequence[str]) -> list[Event]:
        """Wait for a signal or the poll interval, and return new events. There may be none."""
        self._hub.signal.wait(self._topic, self._token, _POLL_SECONDS)
        self._token = self._hub.signal.token(self._topic)
        position = self._current_position()
        if position != self._position:
            self._switch_timeline()
            self._position = position
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
