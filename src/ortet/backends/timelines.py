"""The part of Catalog that keeps events: append-only rows, grouped in timelines that fork."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from ortet.backends.records import Lease, RowChange

_EVENTS_PER_QUERY_COST = 100
"""So many events that nobody wants cost as much as a question."""


class Timeline(msgspec.Struct, frozen=True):
    """A row of events that begins behind event `at` of `parent`; the first of a family has none.

    Ids are 32 hexadecimal digits.
    """

    id: str
    parent: str = ""
    at: int = 0


class EventRow(msgspec.Struct, frozen=True):
    """One event: a chained header, and apart from it what may be erased: `salt` and `body`."""

    seq: int
    head: bytes
    salt: bytes
    body: bytes


class Append(msgspec.Struct, frozen=True):
    """Events for one timeline, to be put behind its last."""

    timeline: str
    events: Sequence[EventRow]


class Timelines(ABC):
    """Events of one timeline are numbered without gaps, from `at` + 1; forks share the ones before.

    What is appended cannot be changed: it can be trimmed, when it is kept elsewhere, and erased.
    """

    @abstractmethod
    def timeline(self, id_: str) -> Timeline | None: ...

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        """Those of many that there are."""
        found = (self.timeline(id_) for id_ in ids)
        return [one for one in found if one is not None]

    @abstractmethod
    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        """Timelines that were forked from this one, in id order, ids greater than `after`."""

    @abstractmethod
    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        """All events and rows, or nothing.

        Conflict("seq_taken") with detail found (the last seq) when the first event is not the next;
        Refused("lease_lost") as `move` does; NotFound("no_timeline").
        """

    @abstractmethod
    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        """Its own events, not its parents', seq greater than `after`; `newest`: the last ones.

        In order of seq in either case.
        """

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        """Of its own events those of these numbers, which are in order; not those it has not."""
        found, wanted = list[EventRow](), set(seqs)
        after, last = (seqs[0] - 1, seqs[-1]) if seqs else (0, 0)
        if len(seqs) * _EVENTS_PER_QUERY_COST < last - after:  # few of many
            asked = ((seq, self.events(timeline, seq - 1, 1)) for seq in seqs)
            return [row for seq, rows in asked for row in rows if row.seq == seq]
        while after < last and (rows := self.events(timeline, after, min(1000, last - after))):
            found += [row for row in rows if row.seq in wanted]
            after = rows[-1].seq
        return found

    @abstractmethod
    def last_seq(self, timeline: str) -> int:
        """The seq of its last event, `at` when it has none; NotFound("no_timeline")."""

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        """The header of the last event of each; empty for one without events of its own."""
        ends = (self.events(one, limit=1, newest=True) for one in timelines)
        return [found[-1].head if found else b"" for found in ends]

    @abstractmethod
    def trim_events(self, timeline: str, upto: int) -> int:
        """Forget events up to this seq, which are kept elsewhere; returns how many.

        The last one always stays.
        """

    @abstractmethod
    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        """Destroy salt and body of these events, also in the file; returns how many had some."""

    @abstractmethod
    def drop_timeline(self, timeline: str) -> None:
        """Remove it with its events; Conflict("has_children") while others began on it."""
