"""One line of events, from the first of its family to the last of its timeline, wherever they are:
in rows of the catalog, or, trimmed there, in the segments of a commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from ortet.backends.base import Catalog, EventRow
from ortet.errors import Corrupt
from ortet.history.records import JournalHead
from ortet.journal.events import Event, EventChain, Tip
from ortet.journal.segments import first_seq, iter_segments, seal, unseal
from ortet.objects.base import ObjectStore

_PAGE = 1000
EMPTY_JOURNAL = JournalHead(b"", 0, b"", b"")
"""The journal of a mind that nothing happened to."""


class TimelineSpan(msgspec.Struct, frozen=True):
    """The events of one timeline with after < seq <= upto."""

    timeline: str
    after: int
    upto: int


class EventLog:
    """Reads a timeline together with those it began on. `base` is what a commit has sealed."""

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
        """Where it ends now."""
        rows = self._catalog.events(self.timeline, limit=1, newest=True)
        if rows:
            return self._chain.tip(rows[0])
        at = self._catalog.last_seq(self.timeline)
        if at == self.base.seq:
            time = 0
            for event in self.newest(1):
                time = event.time
            return Tip(at, self.base.hash, time)
        found = list(self.rows(at - 1, at))
        return self._chain.tip(found[-1]) if found else Tip()

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """In order."""
        for timeline, row in self._rows(after, upto):
            yield self._chain.read(row, timeline)

    def event(self, timeline: str, seq: int) -> Event | None:
        """One of a timeline that it is made of; None where another is in its place."""
        rows = self._catalog.events(timeline, seq - 1, 1)
        if rows and rows[0].seq == seq:
            return self._chain.read(rows[0], timeline)
        found = next(self.events(seq - 1, seq), None)  # sealed, and trimmed here
        return found if found is not None and found.timeline == timeline else None

    def pick_events(self, timeline: str, seqs: Sequence[int]) -> list[Event]:
        """The same of several, which are in order, in one question; not those it has not here."""
        return [
            self._chain.read(row, timeline) for row in self._catalog.events_by_seq(timeline, seqs)
        ]

    def events_by_seq(self, seqs: Sequence[int]) -> list[Event] | None:
        """Events of these numbers, which are in order; None where one of them is not in the catalog
        alone, or not there at all."""
        found: list[Event] = []
        for span in self.timeline_spans():
            low, high = bisect_right(seqs, span.after), bisect_right(seqs, span.upto)
            if low < high:
                rows = self._catalog.events_by_seq(span.timeline, seqs[low:high])
                found += [self._chain.read(row, span.timeline) for row in rows]
        return found if len(found) == len(seqs) else None

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[EventRow]:
        return (row for _, row in self._rows(after, upto))

    def rows_with_timeline(
        self, after: int = 0, upto: int | None = None
    ) -> Iterator[tuple[str, EventRow]]:
        """The same with the timeline of each."""
        return self._rows(after, upto)

    def newest(self, limit: int) -> list[Event]:
        """The last ones, in order."""
        found: list[tuple[str, EventRow]] = []
        for span in reversed(self.timeline_spans()):
            want = limit - len(found)
            rows = self._newest_rows(span, want)
            found[:0] = [(span.timeline, row) for row in rows]
            if len(found) >= limit:
                break
        if len(found) < limit and found and found[0][1].seq > 1:
            low = found[0][1].seq
            found[:0] = list(self._rows(max(0, low - 1 - (limit - len(found))), low - 1))
        if not found and self.base.seq:
            found = list(self._rows(max(0, self.base.seq - limit), None))
        return [self._chain.read(row, timeline) for timeline, row in found]

    def _newest_rows(self, span: TimelineSpan, limit: int) -> list[EventRow]:
        if span.upto <= span.after:
            return []
        low = max(span.after, span.upto - limit)
        rows = self._catalog.events(span.timeline, low, limit)
        return [row for row in rows if row.seq <= span.upto]

    def timeline_spans(self) -> list[TimelineSpan]:
        """The timelines it is made of, the oldest first."""
        return timeline_spans_to(
            self._catalog, self.timeline, self._catalog.last_seq(self.timeline)
        )

    def _rows(self, after: int, upto: int | None) -> Iterator[tuple[str, EventRow]]:
        """From the catalog as far as it has them, the rest from segments."""
        spans = self.timeline_spans()
        last = spans[-1].upto if spans else self.base.seq
        upto = last if upto is None else min(upto, last)
        done = after
        start = min(spans[0].after if spans else upto, upto)
        if done < start:  # what came before is another host's
            yield from self._sealed(done, start)
            done = start
        for span in spans:
            low, high = max(span.after, done), min(span.upto, upto)
            while low < high:
                rows = self._catalog.events(span.timeline, low, min(_PAGE, high - low))
                first = rows[0].seq if rows else high + 1
                if first > low + 1:  # trimmed
                    yield from self._sealed(low, min(first - 1, high))
                for row in rows:
                    if row.seq <= high:
                        yield span.timeline, row
                low = max(min(first - 1, high), min(rows[-1].seq, high) if rows else 0)
            done = max(done, high)

    def _sealed(self, after: int, upto: int) -> Iterator[tuple[str, EventRow]]:
        """From the segments of `base`."""
        chosen = []
        for _, segment in iter_segments(self._objects, self.base.segment):
            chosen.append(segment)
            if first_seq(segment) <= after + 1:
                break
        found = after
        for segment in reversed(chosen):
            for row in unseal(self._objects, segment):
                if after < row.seq <= upto:
                    found = row.seq
                    yield segment.timeline.hex(), row
        if found < upto:
            self._catalog.last_seq(self.timeline)  # NotFound: it was removed meanwhile
            raise Corrupt(
                "no_events",
                f"events {found + 1} to {upto} of timeline {self.timeline} are neither in the "
                "catalog nor in the commit: run `ortet verify`",
            )

    def seal(self, tip: Tip, previous: JournalHead | None = None) -> bytes:
        """Put what `base`, or an earlier journal of this line, does not hold yet into segments;
        returns the last one."""
        base = previous or self.base
        segment = base.segment
        run: list[EventRow] = []
        of = ""
        for timeline, row in self._rows(base.seq, tip.seq):
            if run and timeline != of:
                segment = seal(self._objects, of, run, segment)
                run = []
            of = timeline
            run.append(row)
        return seal(self._objects, of, run, segment) if run else segment


def timeline_spans_to(catalog: Catalog, timeline: str, upto: int) -> list[TimelineSpan]:
    """The timelines that lead to an event of one, the oldest first; none if it is not known."""
    found: list[TimelineSpan] = []
    while timeline:
        line = catalog.timeline(timeline)
        if line is None:  # another host's: its events are in segments
            break
        found.append(TimelineSpan(timeline, line.at, upto))
        timeline, upto = line.parent, line.at
    return found[::-1]


def last_shared_seq(before: Sequence[TimelineSpan], after: Sequence[TimelineSpan]) -> int:
    """Up to which event two lines of one family are one."""
    if not before or not after:
        return 0
    known = {span.timeline: span.upto for span in before}
    shared = min(before[0].after, after[0].after)  # what lies before is another host's
    for span in after:
        upto = known.get(span.timeline, 0)
        shared = max(shared, min(span.upto, upto))
        if upto < span.upto:
            break
    return shared


def seq_ranges(events: Sequence[Event]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as (first, last)."""
    found: list[tuple[int, int]] = []
    for event in events:
        if found and found[-1][1] == event.seq - 1:
            found[-1] = (found[-1][0], event.seq)
        else:
            found.append((event.seq, event.seq))
    return found
