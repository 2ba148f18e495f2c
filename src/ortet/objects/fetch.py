"""Reads many objects: decodes each frame once, in pack order, a few frames ahead of the reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects.source import FrameCache, FrameSource, ObjectLocation

if TYPE_CHECKING:
    from concurrent.futures import Future

_READ_AHEAD_FRAMES = 4
_MAX_SEQUENTIAL_FRAMES = 4

LocatedObject = tuple[Oid, ObjectLocation]
_FrameGroup = tuple[FrameSource, int, list[LocatedObject]]


def read_located(
    located: Sequence[LocatedObject], cache: FrameCache, *, fallback: Callable[[Oid], bytes]
) -> Iterator[tuple[Oid, bytes]]:
    """Yield the bytes at each location. `fallback` reads an object whose frame cannot be read."""
    ordered = sorted(located, key=lambda found: (found[1][0].key, *found[1][1:3]))
    groups: list[_FrameGroup] = []
    for (_, offset), members in groupby(ordered, key=lambda found: (found[1][0].key, found[1][1])):
        listed = list(members)
        groups.append((listed[0][1][0], offset, listed))
    frames = (
        _load_frames(groups, cache)
        if len(groups) <= _MAX_SEQUENTIAL_FRAMES
        else _load_frames_ahead(groups, cache)
    )
    for (_, _, listed), data in zip(groups, frames, strict=True):
        for oid, (_, _, start, length, _) in listed:
            yield oid, fallback(oid) if data is None else data[start : start + length]


def _load_frames(groups: Sequence[_FrameGroup], cache: FrameCache) -> Iterator[bytes | None]:
    for source, offset, _ in groups:
        try:
            yield cache.load(source, offset)
        except (NotFound, Corrupt):
            yield None


def _load_frames_ahead(groups: Sequence[_FrameGroup], cache: FrameCache) -> Iterator[bytes | None]:
    """Decode frames in other threads. Do not cache them: a sequential read uses each frame once."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a command that does not need it starts faster

    def load(source: FrameSource, offset: int) -> bytes | None:
        try:
            return cache.get((source.key, offset)) or source.load(offset)
        except (NotFound, Corrupt):
            return None

    with ThreadPoolExecutor(2, "ortet-fetch") as pool:
        coming: deque[Future[bytes | None]] = deque()
        for number in range(len(groups) + _READ_AHEAD_FRAMES):
            if number < len(groups):
                coming.append(pool.submit(load, *groups[number][:2]))
            if number >= _READ_AHEAD_FRAMES:
                yield coming.popleft().result()
