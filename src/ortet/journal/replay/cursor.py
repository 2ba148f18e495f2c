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
from ortet.journal.replay.likeness import counters, likeness
from ortet.journal.state.reducers import KINDS

AROUND = frozenset(
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


_UNASKED = frozenset({"lifecycle", "comment", "given", "warning", "merge"})
"""Of those, what no verb of a program makes."""


class Recorded(msgspec.Struct, frozen=True):
    """An action as it was: its begin, and its last end if it has one."""

    begun: Event
    ended: Event | None

    @property
    def state(self) -> str:
        return self.ended.data.get("state", "") if self.ended is not None else "begun"


class Cursor:
    """Stands behind the events that were re-enacted. Calls match by what they are and how often
    they were made, not by their order: threads do not keep one.

    Events are read when they are needed, and let go when they were asked for: a long run is not
    held as a whole. `news` are events that were passed since it was last emptied: whoever holds a
    mind folds them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._source = iter(events)
        self._read = 0
        self._held: dict[int, Event] = {}  # those that may still be asked for, or be passed
        self._passed: set[int] = set()  # of those not before `_next`
        self._told: set[int] = set()  # of those: asked for
        self._next = 0
        self._seq = 0
        self._open: dict[str, int] = {}  # by the id of an action, the begin its ends belong to
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._final: set[int] = set()  # begins of which all ends were read
        self._calls: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        self._said: dict[bytes, deque[int]] = defaultdict(deque)
        self.news: list[Event] = []
        self._go()

    @property
    def seq(self) -> int:
        """All up to this event were re-enacted."""
        return self._seq

    @property
    def expected(self) -> Event | None:
        """What the program did next, then; None when it has done all it did."""
        return self._held.get(self._next)

    @property
    def held(self) -> int:
        """How many events are in memory."""
        return len(self._held)

    def call(self, name: str, digest: str) -> Recorded | None:
        """The next action of this name and these arguments."""
        waiting = self._calls[name, digest]
        while not waiting and self._pull():
            pass
        if not waiting:
            return None
        at = waiting.popleft()
        while at not in self._final and self._pull():
            pass
        ends = self._ends.pop(at, [])
        found = Recorded(self._held[at], self._held[ends[-1]] if ends else None)
        within = range(at, ends[0]) if ends else (at,)  # its body, which does not run again
        for index in (*within, *ends):
            self._pass(index)
        self._let_go(at, *ends)
        self._go()
        return found

    def say(self, kind: str, data: dict[str, Any]) -> Event | None:
        """The next event that says the same."""
        waiting = self._said[likeness(kind, data, amounts=False)]
        while not any(map(self._is_new, waiting)) and self._pull():
            pass
        if not waiting:
            return None
        at = next(filter(self._is_new, waiting), waiting[0])
        waiting.remove(at)
        found = self._held[at]
        self._pass(at)
        self._let_go(at)
        self._go()
        return found

    def diverged(self, kind: str, data: dict[str, Any]) -> Diverged:
        """What to say of a step that was not recorded."""
        expected = self.expected
        then = "nothing more was recorded" if expected is None else f"then: {_shown(expected)}"
        return Diverged(
            "diverged",
            f"the replay left the record behind event {self.seq}; {then}; now: "
            f"{_line(kind, data)}; open it with replay='live' to go on from there",
            seq=expected.seq if expected is not None else self.seq + 1,
            expected=None if expected is None else {"kind": expected.kind, "data": expected.data},
            got={"kind": kind, "data": data},
        )

    def _pull(self) -> bool:
        """Read one more; False when there is none."""
        event = next(self._source, None)
        if event is None:
            return False
        at, data = self._read, event.data
        self._read += 1
        self._held[at] = event
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
            self._said[likeness(event.kind, data, amounts=False)].append(at)
        return True

    def _is_new(self, at: int) -> bool:
        return at >= self._next and at not in self._passed

    def _pass(self, at: int) -> None:
        if self._is_new(at):
            self._passed.add(at)
            self.news.append(self._held[at])

    def _let_go(self, *indexes: int) -> None:
        """They were asked for; what is not passed by yet is let go then."""
        for at in indexes:
            if at < self._next:
                self._held.pop(at, None)
            else:
                self._told.add(at)

    def _go(self) -> None:
        """Past all that nobody will ask for."""
        while self._next in self._held or self._pull():
            event = self._held[self._next]
            if self._next not in self._passed and _is_step(event):
                return
            self._pass(self._next)
            self._seq = event.seq
            self._passed.discard(self._next)
            if self._next in self._told or event.kind in _UNASKED:
                self._told.discard(self._next)
                del self._held[self._next]
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
    if event.kind == "spend" and not counters(event.data):
        return False
    return event.kind in KINDS and event.kind not in AROUND


def _shown(event: Event) -> str:
    return f"{_line(event.kind, event.data)} (event {event.seq})"


def _line(kind: str, data: dict[str, Any]) -> str:
    if kind == "begun":
        args = [repr(arg) for arg in data.get("args", ())]
        args += [f"{key}={value!r}" for key, value in data.get("kwargs", {}).items()]
        return f"act {data.get('name')}({', '.join(args)})"[:200]
    said = {key: value for key, value in data.items() if key != "id"}
    return f"{kind} {said!r}"[:200]
