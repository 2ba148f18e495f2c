"""Paths of timelines from the root to their ends, computed for many at once.

It is a module of its own so that queries over all sessions need few catalog calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet._util.codec import decode
from ortet.backends.base import Catalog, Timeline
from ortet.errors import Corrupt
from ortet.history.records import EventHeader
from ortet.journal.event_log import TimelineSpan

_PAGE = 1000


class TimelinePaths:
    """The timeline spans of many sessions, as `EventLog.timeline_spans` has them for one.

    The start of a timeline never changes, so it is read once.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._timelines: dict[str, Timeline] = {}

    def to_ends(self, timelines: Sequence[str]) -> Iterator[list[TimelineSpan]]:
        for start in range(0, len(timelines), _PAGE):
            page = timelines[start : start + _PAGE]
            self._load_timelines(page)
            for timeline, head in zip(page, self._catalog.last_heads(page), strict=True):
                yield self._path_to(timeline, self._end(timeline, head))

    def _load_timelines(self, timelines: Sequence[str]) -> None:
        """Load the starts of these timelines and of all their parents."""
        wanted = {one for one in timelines if one not in self._timelines}
        while wanted:
            found = self._catalog.timelines(sorted(wanted))
            self._timelines.update((line.id, line) for line in found)
            wanted = {line.parent for line in found if line.parent} - self._timelines.keys()

    def _end(self, timeline: str, head: bytes) -> int:
        try:
            found = decode(EventHeader, head).seq if head else 0
        except Corrupt:  # reported when the event is read
            found = 0
        if not found:  # no events of its own, or removed
            self._timelines.pop(timeline, None)
            found = self._catalog.last_seq(timeline)
        return found

    def _path_to(self, timeline: str, upto: int) -> list[TimelineSpan]:
        found: list[TimelineSpan] = []
        while timeline:
            line = self._timelines.get(timeline) or self._catalog.timeline(timeline)
            if line is None:  # timeline of another host; its events are in segments
                break
            self._timelines[timeline] = line
            found.append(TimelineSpan(timeline, line.at, upto))
            timeline, upto = line.parent, line.at
        return found[::-1]
