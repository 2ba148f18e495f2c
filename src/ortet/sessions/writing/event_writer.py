"""Writes one session's events: fenced by its lease, durable by its policy, folded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Condition, RLock, Thread
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, EventRow, RowChange
from ortet.errors import Conflict, Invalid, OrtetError, Refused, Unavailable
from ortet.ids import Clock
from ortet.journal.event_log import EventLog
from ortet.journal.events import Draft, Event, EventChain, Tip
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import SessionState
from ortet.store.lease import HeldLease

Durability = Literal["event", "group", "commit"]
"""When an event is on the disk: before its verb returns; within some ms; with the next commit."""

_MAX_BUFFERED_EVENTS = 2000
"""Events that are written at once in any case."""


class _UnconfirmedWrite(msgspec.Struct, frozen=True):
    """What the store was given and did not answer to: it may be there, or come to be."""

    drafts: Sequence[Draft]
    changes: Sequence[RowChange]
    rows: list[EventRow]
    events: list[Event]


class EventWriter:
    """Safe to use from several threads. `told` is called after events became durable; `hide` gives
    the data of an event without secrets."""

    def __init__(
        self,
        catalog: Catalog,
        event_log: EventLog,
        chain: EventChain,
        *,
        clock: Clock,
        state: SessionState,
        tip: Tip,
        held_lease: HeldLease,
        durability: Durability = "event",
        group_ms: float = 5.0,
        on_durable: Callable[[], None] = lambda: None,
        redact: Callable[[Any], Any] = lambda data: data,
    ) -> None:
        if durability not in ("event", "group", "commit"):
            raise Invalid(
                "bad_policy", f"durability {durability!r}: give 'event', 'group' or 'commit'"
            )
        self.event_log = event_log
        self.state = state
        self.tip = tip
        self._catalog = catalog
        self._chain = chain
        self._clock = clock
        self._held_lease = held_lease
        self._durability = durability
        self._group_s = group_ms / 1000
        self._on_durable = on_durable
        self._redact = redact
        self._lock = RLock()
        self._wakeup = Condition(self._lock)
        self._buffered: list[EventRow] = []
        self._thread: Thread | None = None
        self._failure: OrtetError | None = None
        self._unconfirmed: _UnconfirmedWrite | None = None
        self._closed = False

    def add(
        self, *drafts: Draft, rows: Sequence[RowChange] = (), durable: bool = False
    ) -> list[Event]:
        """Append; durable on return if the policy, or `now`, says so, and always with `rows`.

        When it fails nothing was appended, and the session can go on if the error lets it. Only
        where it is Unavailable it may have been: then the same drafts given next are those.
        """
        with self._lock:
            if self._closed:
                raise Invalid("closed", "the session was closed: open it again with the hub")
            self._raise()
            shown = self._redact_all(drafts)
            if (
                self._unconfirmed is not None
                and (there := self._confirm_write(shown, rows)) is not None
            ):
                return there
            made, events = self._chain.make_all(self._append_tip(), shown, self._clock.now_ns)
            at_once = durable or bool(rows) or self._durability == "event"
            if at_once or len(self._buffered) + len(made) >= _MAX_BUFFERED_EVENTS:
                try:
                    self._write([*self._buffered, *made], rows)
                except Unavailable:
                    self._unconfirmed = _UnconfirmedWrite(
                        shown, rows, [*self._buffered, *made], events
                    )
                    raise
                self._buffered, self._unconfirmed = [], None
            else:
                self._start()
                self._buffered += made
            self._apply(events)
        return events

    def _apply(self, events: list[Event]) -> None:
        if events:
            last = events[-1]
            self.tip = Tip(last.seq, last.hash, last.time)
        fold(self.state, events)

    def _confirm_write(
        self, drafts: Sequence[Draft], changes: Sequence[RowChange]
    ) -> list[Event] | None:
        """What was in doubt, if it is there and is asked for again; None: go on. Whoever asks for
        something else has not known of it, and asks again."""
        doubt = self._unconfirmed
        if doubt is None or not self._is_there(doubt.rows):
            return None
        self._buffered, self._unconfirmed = [], None
        self._apply(doubt.events)
        self._on_durable()
        if (list(drafts), list(changes)) == (list(doubt.drafts), list(doubt.changes)):
            return doubt.events
        raise _late()

    def _is_there(self, rows: Sequence[EventRow]) -> bool:
        """By their headers: no two events have the same."""
        if not rows:
            return False
        found = self._catalog.events(self.event_log.timeline, rows[0].seq - 1, len(rows))
        return [row.head for row in found] == [row.head for row in rows]

    def redacted(self, draft: Draft) -> Draft:
        """As it is recorded: names stand for secrets."""
        data = self._redact(draft.data)
        return draft if data is draft.data else replace(draft, data=data)

    def _redact_all(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The same of several, for the price of one look where there are no secrets."""
        several = [draft.data for draft in drafts]
        return (
            drafts if self._redact(several) is several else [self.redacted(one) for one in drafts]
        )

    def exclusive(self) -> AbstractContextManager[Any]:
        """While it is held no other thread appends: for what depends on the events so far."""
        return self._lock

    def flush(self) -> None:
        """Make durable what waits."""
        with self._lock:
            self._raise()
            if self._buffered:
                waiting, self._buffered = self._buffered, []
                try:
                    self._write(waiting, ())
                except BaseException:
                    self._buffered = waiting
                    raise

    def switch_to(self, event_log: EventLog, state: SessionState, tip: Tip) -> None:
        """On from here with another line; nothing may wait."""
        with self._lock:
            self.event_log, self.state, self.tip, self._unconfirmed = event_log, state, tip, None

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                try:
                    self.flush()
                finally:
                    self._closed = True
                    self._wakeup.notify_all()

    def drop(self) -> None:
        """Close it as it is: what waits is not written."""
        with self._lock:
            self._buffered, self._closed = [], True
            self._wakeup.notify_all()

    def _append_tip(self) -> Tip:
        """Where to go on. The time of what a commit ends with is read when it is first needed."""
        if self.tip.seq and not self.tip.time:
            for event in self.event_log.newest(1):
                self.tip = Tip(self.tip.seq, self.tip.hash, event.time)
        return self.tip

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write(self, events: Sequence[EventRow], rows: Sequence[RowChange]) -> None:
        failpoint("journal.before-append")
        try:
            self._append(events, rows)
        except Refused as error:
            if error.kind != "lease_lost":
                raise
            self._held_lease.renew()  # which raises when another process has taken over
            self._append(events, rows)
        failpoint("journal.after-append")
        self._on_durable()

    def _append(self, events: Sequence[EventRow], rows: Sequence[RowChange]) -> None:
        lease = self._held_lease.lease
        try:
            self._catalog.append(self.event_log.timeline, events, lease=lease, rows=rows)
        except Conflict as error:
            if error.kind == "seq_taken":
                if self._is_there(events):
                    return  # given before, when there was no answer
                if self._unconfirmed is not None and self._is_there(self._unconfirmed.rows):
                    raise _late() from error
                raise Refused(
                    "lease_lost",
                    "another process has written to this session: nothing was written; open it "
                    "again to go on from there",
                ) from error
            raise

    # group commit

    def _start(self) -> None:
        """The first that waits wakes the thread; it then sleeps until the group is full."""
        if self._durability == "group" and not self._buffered:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="ortet-journal", daemon=True)
                self._thread.start()
            self._wakeup.notify_all()

    def _run(self) -> None:
        with self._lock:
            while not self._closed:
                if not self._buffered:
                    self._wakeup.wait()
                    continue
                self._wakeup.wait(self._group_s)
                try:
                    self.flush()
                except OrtetError as error:
                    self._failure = error  # the next verb raises it: nothing may follow a hole
                    return


def _late() -> Unavailable:
    return Unavailable(
        "written_late",
        "what this session wrote last, and was told had failed, was stored after all: read it, and "
        "repeat this call",
    )
