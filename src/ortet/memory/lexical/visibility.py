"""Visibility: the ranges of documents that a query may see, cut by time, each counted once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ortet.memory.base import IndexReader
from ortet.memory.lexical.index_file import index_lost
from ortet.memory.lexical.reader import (
    IDS_PER_LINE,
    FactEndRow,
    IndexPosition,
    pack_timeline_seq,
    tier_of,
)
from ortet.memory.records import EVERYONE, TIERS, EventSpan, Query, Tier, TimelinePath


class VisibleRange(NamedTuple):
    """Visible documents low <= id <= high of one tier of one span.

    `before` and `behind` are the neighbours of its ends along the path, in any range; 0 means none.
    `order` is its position among the ranges. `nearer` is the number of documents in the ranges
    before it.
    """

    span: EventSpan
    scope: str
    low: int
    high: int
    before: int
    behind: int
    order: int = 0
    nearer: int = 0
    believer: int = 0


class VisibleDocuments:
    """The visible ranges, nearest first: the first path first, each path from its end.

    The order depends on the paths and not on the file. An index that was filled in another order
    gives the same results.
    """

    def __init__(self, ranges: list[VisibleRange], tokens: dict[Tier, int], as_of: int) -> None:
        self.ranges = ranges
        self._as_of = as_of
        self._sorted = sorted(ranges, key=lambda stretch: stretch.low)
        self._lows = [stretch.low for stretch in self._sorted]
        counts = dict.fromkeys(TIERS, 0)
        for stretch in ranges:
            counts[tier_of(stretch.low)] += stretch.high - stretch.low + 1
        self.total = sum(counts.values())
        self._averages = {tier: tokens[tier] / counts[tier] for tier in TIERS if counts[tier]}
        self._spans: dict[tuple[int, int], list[EventSpan]] = {}

    def range_of(self, id_: int) -> VisibleRange | None:
        """Return the range of a document, or None if it is not visible."""
        at = bisect_right(self._lows, id_) - 1
        if at < 0 or id_ > self._sorted[at].high:
            return None
        return self._sorted[at]

    def average_length(self, id_: int) -> float:
        """Return the average length of documents of the same tier."""
        return self._averages[tier_of(id_)]

    def neighbours(self, ids: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the ids of the messages before and after each one; 0 if there is none."""
        found: dict[int, tuple[int, int]] = {}
        low, high, before, behind = 1, 0, 0, 0  # values of the range of the last id
        for id_ in ids:
            if not low <= id_ <= high:
                stretch = self.range_of(id_)
                if stretch is None or tier_of(id_) != "working":
                    found[id_] = 0, 0
                    continue
                _, _, low, high, before, behind, *_ = stretch
            found[id_] = (
                id_ - 1 if id_ > low else before,
                id_ + 1 if id_ < high else behind,
            )
        return found

    def spans(self, reader: IndexReader) -> list[EventSpan]:
        """Return the smallest spans of the timelines that contain all visible documents."""
        ends: dict[str, tuple[int, int]] = {}
        seqs = reader.seqs({id_ for one in self.ranges for id_ in (one.low, one.high)})
        for stretch in self.ranges:
            first, last = seqs[stretch.low], seqs[stretch.high]
            low, high = ends.get(stretch.span.timeline, (first, last))
            ends[stretch.span.timeline] = min(low, first), max(high, last)
        return [EventSpan(timeline, first - 1, last) for timeline, (first, last) in ends.items()]

    def is_ended_by(self, end: FactEndRow, id_: int) -> bool:
        """Return True if the retraction `end` applies to a document.

        It applies if it is on a path of the same believer, or of EVERYONE.
        """
        stretch = self.range_of(id_)
        who = stretch.believer if stretch is not None else EVERYONE
        return (not self._as_of or end.time <= self._as_of) and any(
            span.after < end.seq <= span.upto
            for believer in {who, EVERYONE}
            for span in self._spans.get((believer, end.timeline), ())
        )

    def add_heard_span(self, believer: int, timeline: int, span: EventSpan) -> None:
        """Add a span in which retractions apply to the documents of a believer."""
        self._spans.setdefault((believer, timeline), []).append(span)


class _DocumentPiece(NamedTuple):
    """Documents of one tier of one span: low.id < id <= high.id.

    Documents from the requested start time on come after `since`.
    """

    span: EventSpan
    low: IndexPosition
    high: IndexPosition
    since: int


def visible_documents(
    reader: IndexReader, paths: Sequence[TimelinePath], query: Query
) -> VisibleDocuments:
    """Return the documents that a query may see on these paths.

    Raises IndexLost if the index does not contain a span completely.
    """
    numbers = _numbers(reader, paths)
    spans = (span for path in paths for span in path.spans if span.timeline in numbers)
    places = reader.last_positions(
        query.tiers,
        {
            pack_timeline_seq(numbers[span.timeline], seq)
            for span in spans
            for seq in (span.after, span.upto)
        },
    )
    ways = [
        (path, tier, list(_pieces(path, known, numbers)))
        for path in paths
        for tier, known in places.items()
        if known and tier in path.tiers
    ]
    if query.at or query.after:
        ways = _cut_by_time(reader, ways, query)
    claimed: dict[int, list[tuple[int, int]]] = {}
    stretches: list[VisibleRange] = []
    nearer = 0
    for path, _, pieces in ways:
        for stretch in _unclaimed_path_ranges(path.scope, pieces, claimed):
            stretch = stretch._replace(  # noqa: PLW2901
                order=len(stretches), nearer=nearer, believer=path.believer
            )
            stretches.append(stretch)
            nearer += stretch.high - stretch.low + 1
    visible = VisibleDocuments(stretches, _tokens(reader, stretches, ways), query.at)
    for path in paths:
        for span in path.spans:
            if span.timeline in numbers:
                visible.add_heard_span(path.believer, numbers[span.timeline], span)
    return visible


def _numbers(reader: IndexReader, paths: Iterable[TimelinePath]) -> dict[str, int]:
    """Return the numbers of all timelines, with one query.

    Raises IndexLost if the index does not contain all events of the paths.
    """
    spans = [span for path in paths for span in path.spans if span.upto > span.after]
    found = reader.timelines({span.timeline for span in spans})
    for span in spans:
        _, known = found.get(span.timeline, (0, 0))
        if known < span.upto:
            raise index_lost(
                f"timeline {span.timeline} is in the index of memories only up to {known}"
            )
    return {name: number for name, (number, _) in found.items()}


def _pieces(
    path: TimelinePath, places: Mapping[int, IndexPosition], numbers: Mapping[str, int]
) -> Iterator[_DocumentPiece]:
    for span in path.spans:
        if span.upto <= span.after:
            continue
        number = numbers[span.timeline]
        high = places.get(pack_timeline_seq(number, span.upto))
        if high is None:
            continue
        low = places.get(pack_timeline_seq(number, span.after)) or IndexPosition(
            high.id // IDS_PER_LINE * IDS_PER_LINE, 0
        )
        if low.id < high.id:
            yield _DocumentPiece(span, low, high, low.id)


_TierPieces = tuple[TimelinePath, Tier, list[_DocumentPiece]]


def _cut_by_time(
    reader: IndexReader, tier_pieces: Sequence[_TierPieces], query: Query
) -> list[_TierPieces]:
    """Cut all pieces by time, with one query for all of them."""
    every = [piece for _, _, pieces in tier_pieces for piece in pieces]
    if query.at:
        highs = reader.last_before([(one.low, one.high) for one in every], query.at)
        every = [one._replace(high=high) for one, high in zip(every, highs, strict=True)]
    if query.after:
        sinces = reader.last_before([(one.low, one.high) for one in every], query.after - 1)
        every = [one._replace(since=since.id) for one, since in zip(every, sinces, strict=True)]
    left = iter(every)
    cut = [(path, tier, [next(left) for _ in pieces]) for path, tier, pieces in tier_pieces]
    return [
        (path, tier, [one for one in some if one.low.id < one.high.id]) for path, tier, some in cut
    ]


def _tokens(
    reader: IndexReader, ranges: Iterable[VisibleRange], tier_pieces: Iterable[_TierPieces]
) -> dict[Tier, int]:
    """Return the number of tokens of each tier. Totals at the ends of spans are known already."""
    totals: dict[int, int] = {}
    for _, _, pieces in tier_pieces:
        for piece in pieces:
            totals[piece.low.id], totals[piece.high.id] = piece.low.total, piece.high.total
    wanted = {id_ for one in ranges for id_ in (one.high, one.low - 1) if id_ not in totals}
    if wanted:
        totals |= reader.token_totals(wanted)
    tokens = dict.fromkeys(TIERS, 0)
    for one in ranges:
        tokens[tier_of(one.low)] += totals[one.high] - totals[one.low - 1]
    return tokens


def _unclaimed_path_ranges(
    scope: str, pieces: list[_DocumentPiece], claimed: dict[int, list[tuple[int, int]]]
) -> Iterator[VisibleRange]:
    """Yield the parts of a path that no earlier path has, from its end."""
    for number, piece in reversed(list(enumerate(pieces))):
        before = pieces[number - 1].high.id if number else 0
        behind = pieces[number + 1].low.id + 1 if number + 1 < len(pieces) else 0
        others = claimed.setdefault(piece.high.id // IDS_PER_LINE, [])
        for first, last in _unclaimed(piece.since + 1, piece.high.id, others):
            yield VisibleRange(
                piece.span,
                scope,
                first,
                last,
                first - 1 if first > piece.low.id + 1 else before,
                last + 1 if last < piece.high.id else behind,
            )
        others.append((piece.since + 1, piece.high.id))


def _unclaimed(
    low: int, high: int, claimed: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the gaps in low..high that are not claimed, last first."""
    if not claimed:
        return iter([(low, high)] if low <= high else [])
    borders = [(low - 1, low - 1), *sorted(claimed), (high + 1, high + 1)]
    gaps = []
    reach = low - 1
    for (_, end), (start, _) in pairwise(borders):
        reach = max(reach, end)
        first, last = reach + 1, min(start - 1, high)
        if first <= last:
            gaps.append((first, last))
    return reversed(gaps)
