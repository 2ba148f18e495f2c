"""Reading many objects: each frame decoded once, in the order of the packs, a few frames ahead of
the reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects.source import FrameCache, Source, Spot

if TYPE_CHECKING:
    from concurrent.futures import Future

_AHEAD = 4
_FEW = 4

Found = tuple[Oid, Spot]
_Group = tuple[Source, int, list[Found]]


def fetch(
    spots: Sequence[Found], cache: FrameCache, *, again: Callable[[Oid], bytes]
) -> Iterator[tuple[Oid, bytes]]:
    """The bytes at each spot; `again` is asked for what can not be read there."""
    ordered = sorted(spots, key=lambda found: (found[1][0].key, *found[1][1:3]))
    groups: list[_Group] = []
    for (_, offset), members in groupby(ordered, key=lambda found: (found[1][0].key, found[1][1])):
        listed = list(members)
        groups.append((listed[0][1][0], offset, listed))
    frames = _few(groups, cache) if len(groups) <= _FEW else _ahead(groups, cache)
    for (_, _, listed), data in zip(groups, frames, strict=True):
        for oid, (_, _, start, length, _) in listed:
            yield oid, again(oid) if data is None else data[start : start + length]


def _few(groups: Sequence[_Group], cache: FrameCache) -> Iterator[bytes | None]:
    for source, offset, _ in groups:
        try:
            yield cache.load(source, offset)
        except (NotFound, Corrupt):
            yield None


def _ahead(groups: Sequence[_Group], cache: FrameCache) -> Iterator[bytes | None]:
    """Decoded in a second thread; what is read once from end to end is not kept."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

    def load(source: Source, offset: int) -> bytes | None:
        try:
            return cache.get((source.key, offset)) or source.load(offset)
        except (NotFound, Corrupt):
            return None

    with ThreadPoolExecutor(2, "ortet-fetch") as pool:
        coming: deque[Future[bytes | None]] = deque()
        for number in range(len(groups) + _AHEAD):
            if number < len(groups):
                coming.append(pool.submit(load, *groups[number][:2]))
            if number >= _AHEAD:
                yield coming.popleft().result()
