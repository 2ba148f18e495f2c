"""Copying what lives out of packs that are to go, into new packs in good order."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence

from ortet._util.codec import Compressor
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.batch import Batches
from ortet.objects.source import Source, Spot
from ortet.objects.store import LocalObjects
from ortet.objects.tail import SEAL_AT, Tail

_SMALL_PACK = SEAL_AT // 8
_SMALL_PACKS = 4
_CRUMBS = 256


def choose(
    sources: Sequence[Source], alive: Collection[Oid], *, min_garbage: float
) -> tuple[list[Source], list[Source]]:
    """Which packs to rewrite, and which to keep as they are.

    Rewritten are those with enough garbage (a second copy is garbage), those of many tiny frames (a
    long row of small commits), and small ones when there are several to merge.
    """
    sources = sorted(sources, key=lambda source: source.id)
    small = [source for source in sources if source.end < _SMALL_PACK]
    merge = len(small) >= _SMALL_PACKS
    victims: list[Source] = []
    kept: list[Source] = []
    seen: set[Oid] = set()
    for source in sources:
        total = dead = 0
        frames: set[int] = set()
        for oid, spot in source.spots():
            frames.add(spot[1])
            total += spot[3] + 1
            if oid not in alive or oid in seen:
                dead += spot[3] + 1
            else:
                seen.add(oid)
        crumbs = len(frames) >= _CRUMBS and total < len(frames) * frame.FRAME_BYTES // 8
        worth = dead > 0 and dead >= min_garbage * total
        chosen = worth or crumbs or (merge and source.end < _SMALL_PACK)
        (victims if chosen else kept).append(source)
    return victims, kept


class Repacker:
    """Writes new packs, or with `write` False only counts what they would hold."""

    def __init__(self, objects: LocalObjects, *, write: bool) -> None:
        self.objects = 0
        self.bytes = 0
        self.packs = 0
        self._objects = objects
        self._write = write
        self._compressor = Compressor()
        self._kept: Sequence[Source] = ()
        self._done: set[Oid] = set()
        self._batches = Batches()
        self._tail: Tail | None = None
        self._tail_bytes = 0

    def avoid(self, kept: Sequence[Source]) -> None:
        """These packs stay: what they hold in sound condition need not be copied."""
        self._kept = kept

    def copy(self, spots: Iterable[tuple[Oid, Spot]], alive: Collection[Oid]) -> None:
        """Those of one pack's objects that live and that no pack to be kept has."""
        wanted = [
            (oid, spot)
            for oid, spot in spots
            if oid in alive and oid not in self._done and not self._is_kept(oid)
        ]
        wanted.sort(key=lambda found: found[1][1:3])
        self._done.update(oid for oid, _ in wanted)
        for oid, spot in wanted:
            full = self._batches.add((oid, spot[4], self._read(oid, spot)))
            if full is not None:
                self._append(full)

    def _is_kept(self, oid: Oid) -> bool:
        for source in self._kept:
            with contextlib.suppress(Corrupt, NotFound):
                spot = source.find(oid)
                if spot is not None:
                    self._objects.cache.load(source, spot[1])
                    return True
        return False

    def _read(self, oid: Oid, spot: Spot) -> bytes:
        source, offset, start, length, _ = spot
        try:
            data = self._objects.cache.load(source, offset)[start : start + length]
        except (Corrupt, NotFound):
            data = self._objects.get(oid)
        if self._objects.hasher.oid(data) != oid:
            raise Corrupt(
                "bad_object",
                f"object {oid.hex()} does not match its hash: run `ortet verify` before a sweep",
                oid=oid.hex(),
            )
        return data

    def _append(self, items: Sequence[frame.Item]) -> None:
        data = frame.build(items, self._objects.hasher.key_id, self._compressor)
        self.objects += len(items)
        self.bytes += len(data)
        self._tail_bytes += len(data)
        if self._write:
            if self._tail is None:
                self._tail = self._objects.shelf.new_tail()
            self._tail.append(data, items)
        if self._tail_bytes >= SEAL_AT:
            self._seal()

    def seal(self) -> None:
        """Make what was copied durable, as a pack."""
        for items in self._batches.take():
            self._append(items)
        if self._tail_bytes:
            self._seal()

    def give_up(self) -> None:
        """Throw away what was copied since the last pack was made: there is no room for it."""
        self._batches.take()
        self.bytes -= self._tail_bytes
        self.objects = self._tail_bytes = 0
        if self._tail is not None:
            self._objects.shelf.discard(self._tail)
            self._tail = None

    def _seal(self) -> None:
        self.packs += 1
        self._tail_bytes = 0
        if self._tail is not None:
            self._objects.shelf.seal(self._tail, solid=True)
            self._tail = None
