"""A cursor over what was recorded: each call is given what it gave then, until one is new."""

from __future__ import annotations

import builtins
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from ortet import errors
from ortet.errors import Diverged, OrtetError, RecordedFailure
from ortet.journal.events import Event
from ortet.journal.replay.likeness import equality_key, spend_counters
from ortet.journal.state.reducers import EVENT_KINDS

SKIPPED_KINDS = frozenset(
    {
        "lifecycle",
        "comment",
        "asked",
        "given",
        "goal",
        "budget",
        "warning",
        "compaction",
        "aside",
        "ended",
        "merge",
        "window",
        "browser",
        "environment",
    }
)
"""Kinds that do not come from the steps of a program, or not from each run of it: they are passed,
never waited for."""


_NEVER_REQUESTED_KINDS = frozenset({"lifecycle", "comment", "given", "warning", "merge"})
"""Of those, what no verb of a program makes."""


class RecordedAction(msgspec.Struct, frozen=True):
    """An action as it was: its begin, and its last end if it has one."""

    begun: Event
    ended: Event | None

    @property
    def state(self) -> str:
        return self.ended.data.get("state", "") if self.ended is not None else "begun"


class ReplayCursor:
    """Stands behind the events that were re-enacted. Calls match by what they are and how often
    they were made, not by their order: threads do not keep one.

    Events are read when they are needed, and let go when they were asked for: a long run is not
    held as a whole. `news` are events that were passed since it was last emptied: whoever holds a
    mind folds them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._source = iter(events)
        self._read = 0
        self._buffer: dict[int, Event] = {}  # those that may still be asked for, or be passed
        self._consumed: set[int] = set()  # of those not before `_next`
        self._matched: set[int] = set()  # of those: asked for
        self._next = 0
        self._seq = 0
        self._open: dict[str, int] = {}  # by the id of an action, the begin its ends belong to
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._final: set[int] = set()  # begins of which all ends were read
        self._calls: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        self._events_by_key: dict[bytes, deque[int]] = defaultdict(deque)
        self.passed_events: list[Event] = []
        self._advance()

    @property
    def seq(self) -> int:
        """All up to this event were re-enacted."""
        return self._seq

    @property
    def expected(self) -> Event | None:
        """What the program did next, then; None when it has done all it did."""
        return self._buffer.get(self._next)

    @property
    def buffered_count(self) -> int:
        """How many events are in memory."""
        return len(self._buffer)

    def match_call(self, name: str, digest: str) -> RecordedAction | None:
        """The next action of this name and these arguments."""
        waiting = self._calls[name, digest]
        while not waiting and self._read_next():
            pass
        if not waiting:
            return None
        at = waiting.popleft()
        while at not in self._final and self._read_next():
            pass
        ends = self._ends.pop(at, [])
        found = RecordedAction(self._buffer[at], self._buffer[ends[-1]] if ends else None)
        within = range(at, ends[0]) if ends else (at,)  # its body, which does not run again
        for index in (*within, *ends):
            self._consume(index)
        self._release(at, *ends)
        self._advance()
        return found

    def match_event(self, kind: str, data: dict[str, Any]) -> Event | None:
        """The next event that says the same."""
        waiting = self._events_by_key[equality_key(kind, data, with_amounts=False)]
        while not any(map(self._is_unconsumed, waiting)) and self._read_next():
            pass
        if not waiting:
            return None
        at = next(filter(self._is_unconsumed, waiting), waiting[0])
        waiting.remove(at)
        found = self._buffer[at]
        self._consume(at)
        self._release(at)
        self._advance()
        return found

    def divergence_error(self, kind: str, data: dict[str, Any]) -> Diverged:
        """What to say of a step that was not recorded."""
        expected = self.expected
        then = (
            "nothing more was recorded"
            if expected is None
            else f"then: {_describe_event(expected)}"
        )
        return Diverged(
            "diverged",
            f"the replay left the record behind event {self.seq}; {then}; now: "
            f"{_line(kind, data)}; open it with replay='live' to go on from there",
            seq=expected.seq if expected is not None else self.seq + 1,
            expected=None if expected is None else {"kind": expected.kind, "data": expected.data},
            got={"kind": kind, "data": data},
        )

    def _read_next(self) -> bool:
        """Read one more; False when there is none."""
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
        """They were asked for; what is not passed by yet is let go then."""
        for at in indexes:
            if at < self._next:
                self._buffer.pop(at, None)
            else:
                self._matched.add(at)

    def _advance(self) -> None:
        """Past all that nobody will ask for."""
        while self._next in self._buffer or self._read_next():
            event = self._buffer[self._next]
            if self._next not in self._consumed and _is_step(event):
                return
            self._consume(self._next)
            self._seq = event.seq
            self._consumed.discard(self._next)
            if self._next in self._matched or event.kind in _NEVER_REQUESTED_KINDS:
                self._matched.discard(self._next)
                del self._buffer[self._next]
            self._next += 1


def failure_of(name: str, data: dict[str, Any]) -> Exception:
    """The error that a failed action raised, as far as it can be made again."""
    text = str(data.get("error", ""))
    kind, _, message = text.partition(": ")
    known = getattr(errors, kind, None) or getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, OrtetError):
        return known(str(data.get("code") or "recorded_failure"), message)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(message)
        except TypeError:  # one that wants more than words
            pass
    return RecordedFailure(
        "recorded_failure",
        f"action {name!r} failed when it was recorded: {text or 'no error was named'}",
    )


def _is_step(event: Event) -> bool:
    """Whether a program that does the same again will do this."""
    extra = event.data.get("extra")
    if event.erased or (isinstance(extra, dict) and extra.get("synthetic")):
        return False
    if event.data.get("merged"):  # told by a merge, not by the program
        return False
    if event.kind == "spend" and not spend_counters(event.data):
        return False
    return event.kind in EVENT_KINDS and event.kind not in SKIPPED_KINDS


def _describe_event(event: Event) -> str:
    return f"{_line(event.kind, event.data)} (event {event.seq})"


def _line(kind: str, data: dict[str, Any]) -> str:
    if kind == "begun":
        args = [repr(arg) for arg in data.get("args", ())]
        args += [f"{key}={value!r}" for key, value in data.get("kwargs", {}).items()]
        return f"act {data.get('name')}({', '.join(args)})"[:200]
    said = {key: value for key, value in data.items() if key != "id"}
    return f"{kind} {said!r}"[:200]
