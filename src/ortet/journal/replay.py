"""A cursor over what was recorded: each call is given what it gave then, until one is new."""

from __future__ import annotations

import builtins
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from ortet import errors
from ortet.errors import Diverged, OrtetError
from ortet.journal.events import Event
from ortet.journal.folding import KINDS
from ortet.journal.likeness import counters, likeness

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
        "ended",
        "merge",
    }
)
"""Kinds that do not come from the steps of a program, or not from each run of it: they are passed,
never waited for."""


class Recorded(msgspec.Struct, frozen=True):
    """An action as it was: its begin, and its last end if it has one."""

    begun: Event
    ended: Event | None

    @property
    def state(self) -> str:
        return self.ended.data.get("state", "") if self.ended is not None else "begun"


class RecordedFailure(OrtetError):
    """An action failed when it was recorded, with an error that cannot be made again."""

    name = "recorded_failure"


class Cursor:
    """Stands behind the events that were re-enacted. Calls match by what they are and how often
    they were made, not by their order: threads do not keep one.

    `news` are events that were passed since it was last emptied: whoever holds a mind folds them.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)
        self._passed = [False] * len(self._events)
        self._next = 0
        self._ends: dict[int, list[int]] = defaultdict(list)
        self._calls: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        self._said: dict[bytes, deque[int]] = defaultdict(deque)
        self.news: list[Event] = []
        self._index()
        self._go()

    @property
    def seq(self) -> int:
        """All up to this event were re-enacted."""
        return self._events[self._next - 1].seq if self._next else 0

    @property
    def expected(self) -> Event | None:
        """What the program did next, then; None when it has done all it did."""
        return self._events[self._next] if self._next < len(self._events) else None

    def call(self, name: str, digest: str) -> Recorded | None:
        """The next action of this name and these arguments."""
        waiting = self._calls.get((name, digest))
        if not waiting:
            return None
        at = waiting.popleft()
        ends = self._ends[at]
        within = range(at, ends[0]) if ends else (at,)  # its body, which does not run again
        for index in (*within, *ends):
            self._pass(index)
        self._go()
        return Recorded(self._events[at], self._events[ends[-1]] if ends else None)

    def say(self, kind: str, data: dict[str, Any]) -> Event | None:
        """The next event that says the same."""
        waiting = self._said.get(likeness(kind, data, amounts=False))
        if not waiting:
            return None
        at = next((at for at in waiting if not self._passed[at]), waiting[0])
        waiting.remove(at)
        self._pass(at)
        self._go()
        return self._events[at]

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

    def _index(self) -> None:
        open_: dict[str, int] = {}
        for at, event in enumerate(self._events):
            data = event.data
            if event.erased:
                continue
            if event.kind == "begun":
                open_[data["id"]] = at
                self._calls[data["name"], data.get("digest", "")].append(at)
            elif event.kind == "ended":
                if (begun := open_.get(data["id"])) is not None:
                    self._ends[begun].append(at)
            else:
                self._said[likeness(event.kind, data, amounts=False)].append(at)

    def _pass(self, at: int) -> None:
        if not self._passed[at]:
            self._passed[at] = True
            self.news.append(self._events[at])

    def _go(self) -> None:
        """Past all that nobody will ask for."""
        while self._next < len(self._events):
            if not self._passed[self._next] and _is_step(self._events[self._next]):
                return
            self._pass(self._next)
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
