"""Find where two journals diverge, and read the events of each after that point.

Events are read from the segments of commits. They are therefore available in every store that has
the commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from ortet.history.records import JournalHead, JournalSegment
from ortet.ids import Oid
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Event
from ortet.journal.segments import first_seq, iter_segments, unseal
from ortet.objects.base import ObjectStore


class DivergedEvents(NamedTuple):
    """Events of a journal with after < seq <= upto. `sealed` are their segments, newest first."""

    after: int
    upto: int
    sealed: list[JournalSegment]

    @property
    def length(self) -> int:
        return self.upto - self.after

    def newest(self, objects: ObjectStore, chain: EventChain) -> Iterator[Event]:
        """Yield the events, newest first. Segments are read only as far as needed."""
        for segment in self.sealed:
            for row in reversed(unseal(objects, segment)):
                if self.after < row.seq <= self.upto:
                    yield chain.read(row, segment.timeline.hex())


class _SegmentWalk:
    """Walks the segments of a journal from newest to oldest."""

    def __init__(self, objects: ObjectStore, journal: JournalHead) -> None:
        self._rest = iter_segments(objects, journal.segment)
        self.visited: list[JournalSegment] = []
        self.current: tuple[Oid, JournalSegment] | None = None
        self.step()

    def step(self) -> None:
        if self.current is not None:
            self.visited.append(self.current[1])
        self.current = next(self._rest, None)

    @property
    def first(self) -> int:
        return first_seq(self.current[1]) if self.current is not None else 0


def find_divergence(
    objects: ObjectStore, old: JournalHead, new: JournalHead
) -> tuple[DivergedEvents, DivergedEvents]:
    """Return the events that each of two journals has and the other has not.

    The cost grows with the number of these events, not with the length of the journals.
    """
    a, b = _SegmentWalk(objects, old), _SegmentWalk(objects, new)
    while (a.current and a.current[0]) != (b.current and b.current[0]):
        far = max(a.first, b.first)
        for walk in [one for one in (a, b) if one.first == far]:
            walk.step()
    shared = len(b.current[1].heads) + b.first - 1 if b.current is not None else 0
    pairs = zip(_heads(a.visited), _heads(b.visited), strict=False)
    shared += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return DivergedEvents(shared, old.seq, a.visited), DivergedEvents(shared, new.seq, b.visited)


def events_between(
    objects: ObjectStore, journal: JournalHead, after: int, upto: int
) -> DivergedEvents:
    """Return events of a journal with after < seq <= upto.

    The cost grows with the number of events after `after`.
    """
    segments = list[JournalSegment]()
    for _, segment in iter_segments(objects, journal.segment):
        first = first_seq(segment)
        segments += [segment] if first <= upto else []
        if first <= after + 1:
            break
    return DivergedEvents(after, upto, segments)


def _heads(passed: list[JournalSegment]) -> Iterator[bytes]:
    """Yield event headers in order. A header contains the hash of the one before.

    Equal headers therefore have an equal past.
    """
    return (head for segment in reversed(passed) for head in segment.heads)
