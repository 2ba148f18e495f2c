"""Finds the ranges of documents that a query may see, cut by time, each counted once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ortet.memory.base import IndexReader
from ortet.memory.lexical.index_file import index_lost
from ortet.memory.lexical.visible_documents import VisibleDocuments, VisibleRange
from ortet.memory.records import (
    IDS_PER_LINE,
    TIERS,
    EventSpan,
    IndexPosition,
    Query,
    Tier,
    TimelinePath,
    pack_timeline_seq,
    tier_of,
)


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
    visible_ranges: list[VisibleRange] = []
    nearer = 0
    for path, _, pieces in ways:
        for visible_range in _unclaimed_path_ranges(path.scope, pieces, claimed):
            visible_range = visible_range._replace(  # noqa: PLW2901
                order=len(visible_ranges), nearer=nearer, believer=path.believer
            )
            visible_ranges.append(visible_range)
            nearer += visible_range.high - visible_range.low + 1
    visible = VisibleDocuments(visible_ranges, _tokens(reader, visible_ranges, ways), query.at)
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
    numbers = reader.timelines({span.timeline for span in spans})
    for span in spans:
        _, known = numbers.get(span.timeline, (0, 0))
        if known < span.upto:
            raise index_lost(
                f"timeline {span.timeline} is in the index of memories only up to {known}"
            )
    return {name: number for name, (number, _) in numbers.items()}


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
    wanted = {
        id_
        for visible_range in ranges
        for id_ in (visible_range.high, visible_range.low - 1)
        if id_ not in totals
    }
    if wanted:
        totals |= reader.token_totals(wanted)
    tokens = dict.fromkeys(TIERS, 0)
    for visible_range in ranges:
        tokens[tier_of(visible_range.low)] += (
            totals[visible_range.high] - totals[visible_range.low - 1]
        )
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


def visible_spans(visible: VisibleDocuments, reader: IndexReader) -> list[EventSpan]:
    """Return the smallest spans of the timelines that contain all visible documents."""
    ends: dict[str, tuple[int, int]] = {}
    seqs = reader.seqs({id_ for one in visible.ranges for id_ in (one.low, one.high)})
    for visible_range in visible.ranges:
        first, last = seqs[visible_range.low], seqs[visible_range.high]
        low, high = ends.get(visible_range.span.timeline, (first, last))
        ends[visible_range.span.timeline] = min(low, first), max(high, last)
    return [EventSpan(timeline, first - 1, last) for timeline, (first, last) in ends.items()]
