"""What of the index a question may see: stretches of lines, cut by time, each counted once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ortet.memory.base import Reading
from ortet.memory.lexical.index_file import lost
from ortet.memory.lexical.reader import FIRST, Ended, Place, end_of, tier_of
from ortet.memory.records import EVERYONE, TIERS, Path, Query, Span, Tier


class Stretch(NamedTuple):
    """Documents low <= id <= high, of one tier of one span. `before` and `behind` are what stands
    beside its ends along the path, in whatever stretch; 0: nothing. `order` is its place among
    the stretches, `nearer` the number of documents in those before it."""

    span: Span
    scope: str
    low: int
    high: int
    before: int
    behind: int
    order: int = 0
    nearer: int = 0
    believer: int = 0


class Visible:
    """The stretches, the nearest first: the first path before the others, each from its end.

    The order is of the paths and not of the file, so that an index filled in another order gives
    the same answers.
    """

    def __init__(self, stretches: list[Stretch], tokens: dict[Tier, int], at: int) -> None:
        self.stretches = stretches
        self._at = at
        self._sorted = sorted(stretches, key=lambda stretch: stretch.low)
        self._lows = [stretch.low for stretch in self._sorted]
        counts = dict.fromkeys(TIERS, 0)
        for stretch in stretches:
            counts[tier_of(stretch.low)] += stretch.high - stretch.low + 1
        self.total = sum(counts.values())
        self._averages = {tier: tokens[tier] / counts[tier] for tier in TIERS if counts[tier]}
        self._spans: dict[tuple[int, int], list[Span]] = {}

    def stretch(self, id_: int) -> Stretch | None:
        """Where a document is; None: it is not to be found."""
        at = bisect_right(self._lows, id_) - 1
        if at < 0 or id_ > self._sorted[at].high:
            return None
        return self._sorted[at]

    def average(self, id_: int) -> float:
        """The average length of documents of its tier."""
        return self._averages[tier_of(id_)]

    def beside(self, ids: Iterable[int]) -> dict[int, tuple[int, int]]:
        """What was said before and after messages; 0: nothing, or it is none."""
        found: dict[int, tuple[int, int]] = {}
        low, high, before, behind = 1, 0, 0, 0  # of the stretch that the last one was in
        for id_ in ids:
            if not low <= id_ <= high:
                stretch = self.stretch(id_)
                if stretch is None or tier_of(id_) != "working":
                    found[id_] = 0, 0
                    continue
                _, _, low, high, before, behind, *_ = stretch
            found[id_] = (
                id_ - 1 if id_ > low else before,
                id_ + 1 if id_ < high else behind,
            )
        return found

    def spans(self, lookup: Reading) -> list[Span]:
        """As much of the timelines as there is to be found: no more events than that."""
        ends: dict[str, tuple[int, int]] = {}
        seqs = lookup.seqs({id_ for one in self.stretches for id_ in (one.low, one.high)})
        for stretch in self.stretches:
            first, last = seqs[stretch.low], seqs[stretch.high]
            low, high = ends.get(stretch.span.timeline, (first, last))
            ends[stretch.span.timeline] = min(low, first), max(high, last)
        return [Span(timeline, first - 1, last) for timeline, (first, last) in ends.items()]

    def holds(self, end: Ended, id_: int) -> bool:
        """Whether who believes a document has heard that something ended."""
        stretch = self.stretch(id_)
        who = stretch.believer if stretch is not None else EVERYONE
        return (not self._at or end.time <= self._at) and any(
            span.after < end.seq <= span.upto
            for believer in {who, EVERYONE}
            for span in self._spans.get((believer, end.timeline), ())
        )

    def hear(self, believer: int, timeline: int, span: Span) -> None:
        self._spans.setdefault((believer, timeline), []).append(span)


class _Piece(NamedTuple):
    """Documents of one tier of one span: low.id < id <= high.id; of these, what happened since it
    is asked for is behind `since`."""

    span: Span
    low: Place
    high: Place
    since: int


def see(lookup: Reading, paths: Sequence[Path], query: Query) -> Visible:
    """Raises Lost when the index does not hold a span to its end."""
    numbers = _numbers(lookup, paths)
    spans = (span for path in paths for span in path.spans if span.timeline in numbers)
    places = lookup.places(
        query.tiers,
        {end_of(numbers[span.timeline], seq) for span in spans for seq in (span.after, span.upto)},
    )
    ways = [
        (path, tier, list(_pieces(path, known, numbers)))
        for path in paths
        for tier, known in places.items()
        if known and tier in path.tiers
    ]
    if query.at or query.after:
        ways = _cut(lookup, ways, query)
    claimed: dict[int, list[tuple[int, int]]] = {}
    stretches: list[Stretch] = []
    nearer = 0
    for path, _, pieces in ways:
        for stretch in _along(path.scope, pieces, claimed):
            stretch = stretch._replace(  # noqa: PLW2901
                order=len(stretches), nearer=nearer, believer=path.believer
            )
            stretches.append(stretch)
            nearer += stretch.high - stretch.low + 1
    visible = Visible(stretches, _tokens(lookup, stretches, ways), query.at)
    for path in paths:
        for span in path.spans:
            if span.timeline in numbers:
                visible.hear(path.believer, numbers[span.timeline], span)
    return visible


def _numbers(lookup: Reading, paths: Iterable[Path]) -> dict[str, int]:
    """Of their timelines: a store has many, and they are asked for at once."""
    spans = [span for path in paths for span in path.spans if span.upto > span.after]
    found = lookup.timelines({span.timeline for span in spans})
    for span in spans:
        _, known = found.get(span.timeline, (0, 0))
        if known < span.upto:
            raise lost(f"timeline {span.timeline} is in the index of memories only up to {known}")
    return {name: number for name, (number, _) in found.items()}


def _pieces(
    path: Path, places: Mapping[int, Place], numbers: Mapping[str, int]
) -> Iterator[_Piece]:
    for span in path.spans:
        if span.upto <= span.after:
            continue
        number = numbers[span.timeline]
        high = places.get(end_of(number, span.upto))
        if high is None:
            continue
        low = places.get(end_of(number, span.after)) or Place(high.id // FIRST * FIRST, 0)
        if low.id < high.id:
            yield _Piece(span, low, high, low.id)


_Way = tuple[Path, Tier, list[_Piece]]


def _cut(lookup: Reading, ways: Sequence[_Way], query: Query) -> list[_Way]:
    """By time, all of them at once: a store has many."""
    every = [piece for _, _, pieces in ways for piece in pieces]
    if query.at:
        highs = lookup.until([(one.low, one.high) for one in every], query.at)
        every = [one._replace(high=high) for one, high in zip(every, highs, strict=True)]
    if query.after:
        sinces = lookup.until([(one.low, one.high) for one in every], query.after - 1)
        every = [one._replace(since=since.id) for one, since in zip(every, sinces, strict=True)]
    left = iter(every)
    cut = [(path, tier, [next(left) for _ in pieces]) for path, tier, pieces in ways]
    return [
        (path, tier, [one for one in some if one.low.id < one.high.id]) for path, tier, some in cut
    ]


def _tokens(lookup: Reading, stretches: Iterable[Stretch], ways: Iterable[_Way]) -> dict[Tier, int]:
    """Of all stretches of each tier: those up to whole spans have been read with their places."""
    totals: dict[int, int] = {}
    for _, _, pieces in ways:
        for piece in pieces:
            totals[piece.low.id], totals[piece.high.id] = piece.low.total, piece.high.total
    wanted = {id_ for one in stretches for id_ in (one.high, one.low - 1) if id_ not in totals}
    if wanted:
        totals |= lookup.totals(wanted)
    tokens = dict.fromkeys(TIERS, 0)
    for one in stretches:
        tokens[tier_of(one.low)] += totals[one.high] - totals[one.low - 1]
    return tokens


def _along(
    scope: str, pieces: list[_Piece], claimed: dict[int, list[tuple[int, int]]]
) -> Iterator[Stretch]:
    """Those parts of a path that no path before it has, from its end."""
    for number, piece in reversed(list(enumerate(pieces))):
        before = pieces[number - 1].high.id if number else 0
        behind = pieces[number + 1].low.id + 1 if number + 1 < len(pieces) else 0
        others = claimed.setdefault(piece.high.id // FIRST, [])
        for first, last in _unclaimed(piece.since + 1, piece.high.id, others):
            yield Stretch(
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
    """The gaps between what others have, the last first."""
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
