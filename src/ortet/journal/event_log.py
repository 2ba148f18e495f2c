"""Read and seal the events of one timeline and its ancestors.

Events are in rows of the catalog. Rows that were trimmed are read from the segments of a commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from ortet.backends.base import Catalog, EventRow
from ortet.errors import Corrupt
from ortet.history.records import JournalHead
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Event, Tip
from ortet.journal.segments import first_seq, iter_segments, seal, unseal
from ortet.objects.base import ObjectStore

_PAGE = 1000
EMPTY_JOURNAL = JournalHead(b"", 0, b"", b"")
"""Journal head of a session without events."""


class TimelineSpan(msgspec.Struct, frozen=True):
    """The events of one timeline with after < seq <= upto."""

    timeline: str
    after: int
    upto: int


class EventLog:
    """Reads a timeline together with the timelines that it was forked from.

    `base` is the journal head of the last commit. Events up to `base.seq` are sealed in segments.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: ObjectStore,
        chain: EventChain,
        *,
        timeline: str,
        base: JournalHead = EMPTY_JOURNAL,
    ) -> None:
        self.timeline = timeline
        self.base = base
        self._catalog = catalog
        self._objects = objects
        self._chain = chain

    def tip(self) -> Tip:
        """Return the number, hash and time of the last event."""
        rows = self._catalog.events(self.timeline, limit=1, newest=True)
        if rows:
            return self._chain.tip(rows[0])
        last_seq = self._catalog.last_seq(self.timeline)
        if last_seq == self.base.seq:
            time = 0
            for event in self.newest(1):
                time = event.time
            return Tip(last_seq, self.base.hash, time)
        rows_at_tip = list(self.rows(last_seq - 1, last_seq))
        return self._chain.tip(rows_at_tip[-1]) if rows_at_tip else Tip()

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Yield the events with after < seq <= upto, in order."""
        for timeline, row in self._rows(after, upto):
            yield self._chain.read(row, timeline)

    def event(self, timeline: str, seq: int) -> Event | None:
        """Return one event of a timeline that belongs to this log.

        Return None if the event of that number belongs to another timeline.
        """
        rows = self._catalog.events(timeline, seq - 1, 1)
        if rows and rows[0].seq == seq:
            return self._chain.read(rows[0], timeline)
        event = next(self.events(seq - 1, seq), None)  # sealed, and its row was trimmed
        return event if event is not None and event.timeline == timeline else None

    def pick_events(self, timeline: str, seqs: Sequence[int]) -> list[Event]:
        """Return several events of a timeline with one query. `seqs` is sorted.

        Events that are not in the catalog are left out.
        """
        return [
            self._chain.read(row, timeline) for row in self._catalog.events_by_seq(timeline, seqs)
        ]

    def events_by_seq(self, seqs: Sequence[int]) -> list[Event] | None:
        """Return the events with these numbers, or None. `seqs` is sorted.

        None means that at least one of them is not in the catalog.
        """
        events: list[Event] = []
        for span in self.timeline_spans():
            low, high = bisect_right(seqs, span.after), bisect_right(seqs, span.upto)
            if low < high:
                rows = self._catalog.events_by_seq(span.timeline, seqs[low:high])
                events += [self._chain.read(row, span.timeline) for row in rows]
        return events if len(events) == len(seqs) else None

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[EventRow]:
        """Yield the rows with after < seq <= upto, in order."""
        return (row for _, row in self._rows(after, upto))

    def rows_with_timeline(
        self, after: int = 0, upto: int | None = None
    ) -> Iterator[tuple[str, EventRow]]:
        """Yield (timeline, row) for the rows with after < seq <= upto, in order."""
        return self._rows(after, upto)

    def newest(self, limit: int) -> list[Event]:
        """Return the last `limit` events, in order."""
        newest: list[tuple[str, EventRow]] = []
        for span in reversed(self.timeline_spans()):
            missing = limit - len(newest)
            rows = self._newest_rows(span, missing)
            newest[:0] = [(span.timeline, row) for row in rows]
            if len(newest) >= limit:
                break
        if len(newest) < limit and newest and newest[0][1].seq > 1:
            low = newest[0][1].seq
            newest[:0] = list(self._rows(max(0, low - 1 - (limit - len(newest))), low - 1))
        if not newest and self.base.seq:
            newest = list(self._rows(max(0, self.base.seq - limit), None))
        return [self._chain.read(row, timeline) for timeline, row in newest]

    def _newest_rows(self, span: TimelineSpan, limit: int) -> list[EventRow]:
        if span.upto <= span.after:
            return []
        low = max(span.after, span.upto - limit)
        rows = self._catalog.events(span.timeline, low, limit)
        return [row for row in rows if row.seq <= span.upto]

    def timeline_spans(self) -> list[TimelineSpan]:
        """Return the timelines of this log with their ranges, oldest first."""
        return timeline_spans_to(
            self._catalog, self.timeline, self._catalog.last_seq(self.timeline)
        )

    def _rows(self, after: int, upto: int | None) -> Iterator[tuple[str, EventRow]]:
        """Read rows from the catalog, and those that are missing there from segments."""
        spans = self.timeline_spans()
        last = spans[-1].upto if spans else self.base.seq
        upto = last if upto is None else min(upto, last)
        done = after
        start = min(spans[0].after if spans else upto, upto)
        if done < start:  # earlier events belong to another host
            yield from self._sealed(done, start)
            done = start
        for span in spans:
            low, high = max(span.after, done), min(span.upto, upto)
            while low < high:
                rows = self._catalog.events(span.timeline, low, min(_PAGE, high - low))
                first = rows[0].seq if rows else high + 1
                if first > low + 1:  # rows were trimmed
                    yield from self._sealed(low, min(first - 1, high))
                for row in rows:
                    if row.seq <= high:
                        yield span.timeline, row
                low = max(min(first - 1, high), min(rows[-1].seq, high) if rows else 0)
            done = max(done, high)

    def _sealed(self, after: int, upto: int) -> Iterator[tuple[str, EventRow]]:
        """Yield events from the segments of `base`."""
        chosen = []
        for _, segment in iter_segments(self._objects, self.base.segment):
            chosen.append(segment)
            if first_seq(segment) <= after + 1:
                break
        last_seq = after
        for segment in reversed(chosen):
            for row in unseal(self._objects, segment):
                if after < row.seq <= upto:
                    last_seq = row.seq
                    yield segment.timeline.hex(), row
        if last_seq < upto:
            # raises NotFound if the timeline was removed concurrently
            self._catalog.last_seq(self.timeline)
            raise Corrupt(
                "no_events",
                f"events {last_seq + 1} to {upto} of timeline {self.timeline} are neither in the "
                "catalog nor in the commit: run `ortet verify`",
            )

    def seal(self, tip: Tip, previous: JournalHead | None = None) -> bytes:
        """Write the events after `base`, or after `previous`, to segments.

        Returns:
            Oid of the last segment.
        """
        base = previous or self.base
        segment = base.segment
        run: list[EventRow] = []
        run_timeline = ""
        for timeline, row in self._rows(base.seq, tip.seq):
            if run and timeline != run_timeline:
                segment = seal(self._objects, run_timeline, run, segment)
                run = []
            run_timeline = timeline
            run.append(row)
        return seal(self._objects, run_timeline, run, segment) if run else segment


def timeline_spans_to(catalog: Catalog, timeline: str, upto: int) -> list[TimelineSpan]:
    """Return the timelines that lead to event `upto`, oldest first.

    The list is empty if the timeline is unknown here.
    """
    spans: list[TimelineSpan] = []
    while timeline:
        row = catalog.timeline(timeline)
        if row is None:  # of another host: its events are in segments
            break
        spans.append(TimelineSpan(timeline, row.at, upto))
        timeline, upto = row.parent, row.at
    return spans[::-1]


def last_shared_seq(before: Sequence[TimelineSpan], after: Sequence[TimelineSpan]) -> int:
    """Return the number of the last event that two logs of one family share."""
    if not before or not after:
        return 0
    upto_before = {span.timeline: span.upto for span in before}
    shared = min(before[0].after, after[0].after)  # earlier events belong to another host
    for span in after:
        upto = upto_before.get(span.timeline, 0)
        shared = max(shared, min(span.upto, upto))
        if upto < span.upto:
            break
    return shared


def seq_ranges(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Return runs of consecutive event numbers as (first, last)."""
    ranges: list[tuple[int, int]] = []
    for event in events:
        if ranges and ranges[-1][1] == event.seq - 1:
            ranges[-1] = (ranges[-1][0], event.seq)
        else:
            ranges.append((event.seq, event.seq))
    return ranges
