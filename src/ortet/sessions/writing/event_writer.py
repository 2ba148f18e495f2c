"""The writer of a session's events.

Each append is fenced by the lease of the session. The durability policy says when events reach the
disk. Events are folded into the in-memory state in the same call.

Invariants: sequence numbers have no gaps. After a failed background write no event is appended. An
append whose answer was lost is recognised by its headers and is not written twice. An exception
that is no error of Ortet, such as KeyboardInterrupt, may come between the store and the memory. The
writer is then torn, and the next call loads the session from the store before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Condition, RLock, Thread
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, EventRow, RowChange
from ortet.errors import Conflict, Invalid, OrtetError, Refused, Unavailable
from ortet.ids import Clock
from ortet.journal.event_chain import EventChain
from ortet.journal.event_log import EventLog
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.state.state import SessionState
from ortet.store.lease import WriterLease

Durability = Literal["event", "group", "commit"]
"""When an event is on disk: before its verb returns, within some ms, or with the next commit."""

_REPAIR_TIMEOUT_SECONDS = 30.0

_MAX_BUFFERED_EVENTS = 2000
"""Number of buffered events that forces a write."""


class RecordedEvents(Protocol):
    """The events of a replay. While a writer has them, it appends nothing."""

    @property
    def position(self) -> int:
        """The last event that was replayed."""

    def add(
        self, *drafts: Draft, rows: Sequence[RowChange] = (), durable: bool = False
    ) -> list[Event]:
        """Return the recorded events that equal the drafts."""
        ...


class _UnconfirmedWrite(msgspec.Struct, frozen=True):
    """An append whose outcome the caller was not told. It may be stored now, later or never."""

    drafts: Sequence[Draft]
    changes: Sequence[RowChange]
    rows: list[EventRow]
    events: list[Event]


class EventWriter:
    """Appends the events of one session. Safe to use from several threads.

    `on_durable` is called after events became durable. `redact` replaces secrets in event data by
    their names. `recorded` is set while the session replays its events.
    """

    def __init__(
        self,
        catalog: Catalog,
        event_log: EventLog,
        chain: EventChain,
        *,
        clock: Clock,
        state: SessionState,
        tip: Tip,
        held_lease: WriterLease,
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
        self._interrupted: _UnconfirmedWrite | None = None
        self._torn = False
        self.moves = RLock()
        """Held by verbs that move the branch, before the lock of the writer."""
        self.reload: Callable[[], None] = lambda: None
        """Loads the session from the store and calls `restart`."""
        self._closed = False
        self.recorded: RecordedEvents | None = None

    @property
    def position(self) -> int | None:
        """The last event that is visible in a replay; None if all are."""
        return None if self.recorded is None else self.recorded.position

    def add(
        self, *drafts: Draft, rows: Sequence[RowChange] = (), durable: bool = False
    ) -> list[Event]:
        """Append events and fold them into the state.

        If the call fails, nothing was appended. Only after Unavailable the outcome is unknown.
        Repeat the call with the same drafts then: they are not appended twice.

        Args:
            drafts: the events to append.
            rows: row changes for the same transaction. Given rows make the append durable.
            durable: make the events durable on return, whatever the policy says.

        Returns:
            The appended events.

        Raises:
            Refused: "lease_lost" if another process has taken over the session.
            Unavailable: the store did not answer, or "written_late".
        """
        self.repair()
        with self._lock:
            if self.recorded is not None:
                return self.recorded.add(*drafts, rows=rows, durable=durable)
            if self._closed:
                raise Invalid("closed", "the session was closed: open it again with the hub")
            self._raise()
            shown = self._redact_all(drafts)
            if (
                self._unconfirmed is not None
                and (there := self._confirm_write(shown, rows)) is not None
            ):
                return there
            if (there := self._repeated(shown)) is not None:
                return there
            return self._add(shown, rows, durable=durable)

    def _add(
        self, drafts: Sequence[Draft], changes: Sequence[RowChange], *, durable: bool
    ) -> list[Event]:
        made, events = self._chain.make_all(self._append_tip(), drafts, self._clock.now_ns)
        at_once = durable or bool(changes) or self._durability == "event"
        with_buffered = [*self._buffered, *made]
        write = _UnconfirmedWrite(drafts, changes, with_buffered, events)
        self._interrupted, self._torn = write, True
        try:
            if at_once or len(with_buffered) >= _MAX_BUFFERED_EVENTS:
                try:
                    self._write(with_buffered, changes)
                except Unavailable:
                    self._unconfirmed = write
                    raise
                self._buffered, self._unconfirmed = [], None
            else:
                self._start()
                self._buffered = with_buffered
            self._apply(events)
        except OrtetError:  # the store has said what it did
            self._interrupted, self._torn = None, False
            raise
        self._interrupted, self._torn = None, False
        return events

    def _repeated(self, drafts: Sequence[Draft]) -> list[Event] | None:
        """Return the events of an append that was interrupted, if it is stored and now repeated."""
        known, self._interrupted = self._interrupted, None
        if known is None or list(known.drafts) != list(drafts):
            return None
        return known.events

    # interrupted verbs

    @property
    def is_torn(self) -> bool:
        """True if a verb was interrupted, so that the memory may differ from the store."""
        return self._torn

    def mark_torn(self) -> None:
        """Load the session from the store before the next verb."""
        self._torn = True

    def repair(self) -> None:
        """Load the session from the store if a verb was interrupted.

        Raises:
            Unavailable: "interrupted" if another thread uses the session all the time.
        """
        if not self._torn or self._closed or self.recorded is not None:
            return
        if not self.moves.acquire(timeout=_REPAIR_TIMEOUT_SECONDS):
            raise Unavailable(
                "interrupted",
                "a call of this session was interrupted, and another thread uses the session: "
                "repeat this call",
            )
        try:
            with self._lock:
                if self._torn:
                    self.reload()
        finally:
            self.moves.release()

    def restart(self, event_log: EventLog, state: SessionState, tip: Tip) -> None:
        """Go on from what the store has, with the buffered events that it does not have."""
        with self._lock:
            same = event_log.timeline == self.event_log.timeline
            waiting = [row for row in self._buffered if same and row.seq > tip.seq]
            events = [self._chain.read(row) for row in waiting]
            self.event_log, self.state, self.tip = event_log, state, tip
            self._buffered, self._unconfirmed = waiting, None
            self._apply(events)
            known = self._interrupted
            if known is not None and not (same and self._knows(known.events)):
                self._interrupted = None
            self._torn = False

    def _knows(self, events: Sequence[Event]) -> bool:
        """Return True if these events are stored or buffered."""
        if not events or self.tip.seq < events[-1].seq:
            return False
        buffered = {row.seq for row in self._buffered}
        stored = [event for event in events if event.seq not in buffered]
        rows = (
            self._catalog.events(self.event_log.timeline, stored[0].seq - 1, len(stored))
            if stored
            else []
        )
        return [self._chain.tip(row).hash for row in rows] == [event.hash for event in stored]

    def _apply(self, events: list[Event]) -> None:
        if events:
            last = events[-1]
            self.tip = Tip(last.seq, last.hash, last.time)
        fold(self.state, events)

    def _confirm_write(
        self, drafts: Sequence[Draft], changes: Sequence[RowChange]
    ) -> list[Event] | None:
        """Return the events of the unconfirmed append if it is stored and is now repeated.

        Returns None if it is not stored; the caller then appends. A caller that appends something
        else has not seen the stored events and gets Unavailable("written_late").
        """
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
        """Return True if the catalog holds these events.

        Headers are unique, so only they are compared.
        """
        if not rows:
            return False
        found = self._catalog.events(self.event_log.timeline, rows[0].seq - 1, len(rows))
        return [row.head for row in found] == [row.head for row in rows]

    def redacted(self, draft: Draft) -> Draft:
        """Return the draft as it is recorded, with names in place of secrets."""
        data = self._redact(draft.data)
        return draft if data is draft.data else replace(draft, data=data)

    def _redact_all(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Redact several drafts. One scan is enough if they hold no secret."""
        several = [draft.data for draft in drafts]
        return (
            drafts if self._redact(several) is several else [self.redacted(one) for one in drafts]
        )

    def exclusive(self) -> AbstractContextManager[Any]:
        """Hold the lock: no other thread appends while the caller relies on the present events."""
        self.repair()
        return self._lock

    def flush(self) -> None:
        """Make buffered events durable."""
        self.repair()
        with self._lock:
            self._raise()
            if self._buffered:
                self._torn = True
                try:
                    self._write(self._buffered, ())
                    self._buffered = []
                except OrtetError:
                    self._torn = False
                    raise
                self._torn = False

    def switch_to(self, event_log: EventLog, state: SessionState, tip: Tip) -> None:
        """Continue on another event log. No event may be buffered."""
        with self._lock:
            self.event_log, self.state, self.tip, self._unconfirmed = event_log, state, tip, None

    def close(self) -> None:
        """Flush, then refuse further events."""
        with self._lock:
            if not self._closed:
                try:
                    self.flush()
                finally:
                    self._closed = True
                    self._wakeup.notify_all()

    def drop(self) -> None:
        """Close without writing buffered events."""
        with self._lock:
            self._buffered, self._closed = [], True
            self._wakeup.notify_all()

    def _append_tip(self) -> Tip:
        """Return the position of the last event.

        The time of the last event of a commit is read only when it is first needed.
        """
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
            self._held_lease.renew()  # raises if another process has taken over
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
                    return  # this append was stored earlier, without an answer
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
        """Wake the writer thread for the first buffered event.

        It then waits for the group interval.
        """
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
                    self._failure = error  # the next verb raises it, so that no event follows a gap
                    return


def _late() -> Unavailable:
    return Unavailable(
        "written_late",
        "what this session wrote last, and was told had failed, was stored after all: read it, and "
        "repeat this call",
    )
