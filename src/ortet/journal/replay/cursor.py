"""Cursor over the recorded events of a session during a replay.

Each call of the program gets its recorded outcome, until a call was not recorded.
"""

from __future__ import annotations

import builtins
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from ortet import errors
from ortet.errors import Diverged, OrtetError, RecordedFailure
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.replay.run_diff import equality_key, spend_counters


class RecordedAction(msgspec.Struct, frozen=True):
    """A recorded action: its "begun" event, and its last "ended" event or None."""

    begun: Event
    ended: Event | None

    @property
    def state(self) -> str:
        """State of the action: "begun" without an end, otherwise the state of its last end."""
        return self.ended.data.get("state", "") if self.ended is not None else "begun"


class ReplayCursor:
    """Matches calls of a replayed program with recorded events.

    Calls match by content and by count, not by order, because threads have no fixed order. Events
    are read when they are needed and released after they were matched, so that a long run is never
    in memory as a whole. `passed_events` are the events passed since the list was last emptied. The
    owner of the session state folds them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._source = iter(events)
        self._read = 0
        self._buffer: dict[int, Event] = {}  # events that may still be matched or passed
        self._consumed: set[int] = set()  # consumed events at or after `_next`
        self._matched: set[int] = set()  # the matched ones among `_consumed`
        self._next = 0
        self._seq = 0
        self._open: dict[str, int] = {}  # action id -> its latest "begun" event
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._final: set[int] = set()  # "begun" events whose "ended" events were all read
        self._calls: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        self._events_by_key: dict[bytes, deque[int]] = defaultdict(deque)
        self.passed_events: list[Event] = []
        self._advance()

    @property
    def seq(self) -> int:
        """Number of the event up to which everything was replayed."""
        return self._seq

    @property
    def expected(self) -> Event | None:
        """The next recorded step of the program, or None at the end of the record."""
        return self._buffer.get(self._next)

    @property
    def buffered_count(self) -> int:
        """Number of events in memory."""
        return len(self._buffer)

    def match_call(self, name: str, digest: str) -> RecordedAction | None:
        """Return the next recorded action with this name and argument digest, or None."""
        waiting = self._calls[name, digest]
        while not waiting and self._read_next():
            pass
        if not waiting:
            return None
        at = waiting.popleft()
        while at not in self._final and self._read_next():
            pass
        ends = self._ends.pop(at, [])
        action = RecordedAction(self._buffer[at], self._buffer[ends[-1]] if ends else None)
        # events of its body, which does not run again
        within = range(at, ends[0]) if ends else (at,)
        for index in (*within, *ends):
            self._consume(index)
        self._release(at, *ends)
        self._advance()
        return action

    def match_event(self, kind: str, data: dict[str, Any]) -> Event | None:
        """Return the next recorded event with equal content, or None."""
        waiting = self._events_by_key[equality_key(kind, data, with_amounts=False)]
        while not any(map(self._is_unconsumed, waiting)) and self._read_next():
            pass
        if not waiting:
            return None
        index = next(filter(self._is_unconsumed, waiting), waiting[0])
        waiting.remove(index)
        event = self._buffer[index]
        self._consume(index)
        self._release(index)
        self._advance()
        return event

    def divergence_error(self, kind: str, data: dict[str, Any]) -> Diverged:
        """Return the error for a step that was not recorded."""
        expected = self.expected
        expectation = (
            "nothing more was recorded"
            if expected is None
            else f"then: {_describe_event(expected)}"
        )
        return Diverged(
            "diverged",
            f"the replay left the record behind event {self.seq}; {expectation}; now: "
            f"{_line(kind, data)}; open it with replay='live' to go on from there",
            seq=expected.seq if expected is not None else self.seq + 1,
            expected=None if expected is None else {"kind": expected.kind, "data": expected.data},
            got={"kind": kind, "data": data},
        )

    def _read_next(self) -> bool:
        """Read one more event into the buffer. Return False at the end."""
        event = next(self._source, None)
        if event is None:
            return False
        at, data = self._read, event.data
        self._read += 1
        self._buffer[at] = event
        if event.erased:
            pass
        elif event.kind == "begun":
            before = self._open.get(data["id"])
            if before is not None:
                self._final.add(before)
            self._open[data["id"]] = at
            self._calls[data["name"], data.get("digest", "")].append(at)
        elif event.kind == "ended":
            if (begun := self._open.get(data["id"])) is not None:
                self._ends[begun].append(at)
                if data.get("state") in ("done", "failed"):
                    self._final.add(begun)
        else:
            self._events_by_key[equality_key(event.kind, data, with_amounts=False)].append(at)
        return True

    def _is_unconsumed(self, at: int) -> bool:
        return at >= self._next and at not in self._consumed

    def _consume(self, at: int) -> None:
        if self._is_unconsumed(at):
            self._consumed.add(at)
            self.passed_events.append(self._buffer[at])

    def _release(self, *indexes: int) -> None:
        """Release matched events. Events at or after `_next` are released when they are passed."""
        for at in indexes:
            if at < self._next:
                self._buffer.pop(at, None)
            else:
                self._matched.add(at)

    def _advance(self) -> None:
        """Move past all events that no call has to match."""
        while self._next in self._buffer or self._read_next():
            event = self._buffer[self._next]
            if self._next not in self._consumed and _is_step(event):
                return
            self._consume(self._next)
            self._seq = event.seq
            self._consumed.discard(self._next)
            if self._next in self._matched or kind_of(event.kind).replay == "never_requested":
                self._matched.discard(self._next)
                del self._buffer[self._next]
            self._next += 1


def failure_of(name: str, data: dict[str, Any]) -> Exception:
    """Return the error of a failed action, rebuilt from its record if possible."""
    text = str(data.get("error", ""))
    kind, _, message = text.partition(": ")
    error_type = getattr(errors, kind, None) or getattr(builtins, kind, None)
    if isinstance(error_type, type) and issubclass(error_type, OrtetError):
        return error_type(str(data.get("code") or "recorded_failure"), message)
    if isinstance(error_type, type) and issubclass(error_type, Exception):
        try:
            return error_type(message)
        except TypeError:  # its constructor needs other arguments
            pass
    return RecordedFailure(
        "recorded_failure",
        f"action {name!r} failed when it was recorded: {text or 'no error was named'}",
    )


def _is_step(event: Event) -> bool:
    """Return True if the same program, run again, produces this event."""
    extra = event.data.get("extra")
    if event.erased or (isinstance(extra, dict) and extra.get("synthetic")):
        return False
    if event.data.get("merged"):  # written by a merge, not by the program
        return False
    kind = kind_of(event.kind)
    if kind.measured and not spend_counters(event.data):
        return False
    return kind.replay == "step"


def is_skipped(kind: str) -> bool:
    """Return True for events that a replay skips.

    A replayed program does not produce them, or not in every run.
    """
    return kind_of(kind).replay in ("skipped", "never_requested")


def _describe_event(event: Event) -> str:
    return f"{_line(event.kind, event.data)} (event {event.seq})"


def _line(kind: str, data: dict[str, Any]) -> str:
    if kind == "begun":
        args = [repr(arg) for arg in data.get("args", ())]
        args += [f"{key}={value!r}" for key, value in data.get("kwargs", {}).items()]
        return f"act {data.get('name')}({', '.join(args)})"[:200]
    fields = {key: value for key, value in data.items() if key != "id"}
    return f"{kind} {fields!r}"[:200]
