"""The event part of the Catalog contract: append-only events in timelines that can fork."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from ortet.backends.records import Lease, RowChange

_EVENTS_PER_QUERY_COST = 100
"""Reading this many unwanted events costs as much as one additional query."""


class Timeline(msgspec.Struct, frozen=True):
    """A sequence of events that starts after event `at` of `parent`.

    A timeline without a parent is the root of its family. Ids are 32 hexadecimal digits.
    """

    id: str
    parent: str = ""
    at: int = 0


class EventRow(msgspec.Struct, frozen=True):
    """One event: a hash-chained header, and apart from it salt and body, which can be erased."""

    seq: int
    head: bytes
    salt: bytes
    body: bytes


class Append(msgspec.Struct, frozen=True):
    """Events to append to one timeline."""

    timeline: str
    events: Sequence[EventRow]


class Timelines(ABC):
    """Storage of events. Events of a timeline are numbered without gaps, from `at` + 1.

    A fork shares the events before `at` with its parent. Appended events never change. They can
    only be trimmed, once they are stored elsewhere, and erased.
    """

    @abstractmethod
    def timeline(self, id_: str) -> Timeline | None: ...

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        """Return the timelines that exist among `ids`."""
        found = (self.timeline(id_) for id_ in ids)
        return [one for one in found if one is not None]

    @abstractmethod
    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        """Return the timelines forked from this one, in id order, with ids greater than `after`."""

    @abstractmethod
    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        """Append all events and write all rows, or do nothing.

        Raises:
            Conflict: "seq_taken" with detail found (the last seq) if the first event is not the
                next.
            Refused: "lease_lost", under the conditions of `Catalog.move`.
            NotFound: "no_timeline".
        """

    @abstractmethod
    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        """Return events of the timeline itself, not of its parents, with seq greater than `after`.

        `newest` selects the last `limit` events instead of the first. The result is in order of seq
        either way.
        """

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        """Return the timeline's own events with the given numbers; missing numbers are left out.

        `seqs` must be in ascending order.
        """
        found, wanted = list[EventRow](), set(seqs)
        after, last = (seqs[0] - 1, seqs[-1]) if seqs else (0, 0)
        # few events, far apart: one query each
        if len(seqs) * _EVENTS_PER_QUERY_COST < last - after:
            asked = ((seq, self.events(timeline, seq - 1, 1)) for seq in seqs)
            return [row for seq, rows in asked for row in rows if row.seq == seq]
        while after < last and (rows := self.events(timeline, after, min(1000, last - after))):
            found += [row for row in rows if row.seq in wanted]
            after = rows[-1].seq
        return found

    @abstractmethod
    def last_seq(self, timeline: str) -> int:
        """Return the seq of the last event, or `at` if there is none.

        Raise NotFound("no_timeline").
        """

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        """Return the header of the last event of each timeline, b"" for one without own events."""
        ends = (self.events(one, limit=1, newest=True) for one in timelines)
        return [found[-1].head if found else b"" for found in ends]

    @abstractmethod
    def trim_events(self, timeline: str, upto: int) -> int:
        """Delete events up to `upto`, which are stored elsewhere. Return how many were deleted.

        The last event always stays.
        """

    @abstractmethod
    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        """Destroy salt and body of these events, also in the database file.

        Return how many of the events had salt or body.
        """

    @abstractmethod
    def drop_timeline(self, timeline: str) -> None:
        """Delete a timeline and its events. Raise Conflict("has_children") if it has forks."""
