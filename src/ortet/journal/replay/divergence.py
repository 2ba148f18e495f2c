"""Where two journals part, and what each has been through since: read from what commits hold, so
that it is there whoever made them, and wherever."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from ortet.history.records import Journal, Segment
from ortet.ids import Oid
from ortet.journal.events import Chain, Event
from ortet.journal.segments import first_seq, segments, unseal
from ortet.objects.base import Objects


class Stretch(NamedTuple):
    """The events of a journal with a number above `after`; `sealed` holds them, newest first."""

    after: int
    upto: int
    sealed: list[Segment]

    @property
    def length(self) -> int:
        return self.upto - self.after

    def newest(self, objects: Objects, chain: Chain) -> Iterator[Event]:
        """The newest first: who wants a few reads a few."""
        for segment in self.sealed:
            for row in reversed(unseal(objects, segment)):
                if self.after < row.seq <= self.upto:
                    yield chain.read(row, segment.timeline.hex())


class _Walk:
    """Back along the segments of a journal."""

    def __init__(self, objects: Objects, journal: Journal) -> None:
        self._rest = segments(objects, journal.segment)
        self.passed: list[Segment] = []
        self.at: tuple[Oid, Segment] | None = None
        self.step()

    def step(self) -> None:
        if self.at is not None:
            self.passed.append(self.at[1])
        self.at = next(self._rest, None)

    @property
    def first(self) -> int:
        return first_seq(self.at[1]) if self.at is not None else 0


def part(objects: Objects, old: Journal, new: Journal) -> tuple[Stretch, Stretch]:
    """What each of two journals has that the other has not; takes as long as that is much."""
    a, b = _Walk(objects, old), _Walk(objects, new)
    while (a.at and a.at[0]) != (b.at and b.at[0]):
        far = max(a.first, b.first)
        for walk in [one for one in (a, b) if one.first == far]:
            walk.step()
    shared = len(b.at[1].heads) + b.first - 1 if b.at is not None else 0
    pairs = zip(_heads(a.passed), _heads(b.passed), strict=False)
    shared += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return Stretch(shared, old.seq, a.passed), Stretch(shared, new.seq, b.passed)


def stretch(objects: Objects, journal: Journal, after: int, upto: int) -> Stretch:
    """Some events of a journal; takes as long as what came since is much."""
    found = list[Segment]()
    for _, segment in segments(objects, journal.segment):
        first = first_seq(segment)
        found += [segment] if first <= upto else []
        if first <= after + 1:
            break
    return Stretch(after, upto, found)


def _heads(passed: list[Segment]) -> Iterator[bytes]:
    """In order: a head names the one before it, so that equal ones have the same past."""
    return (head for segment in reversed(passed) for head in segment.heads)
