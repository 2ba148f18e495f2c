"""Copies reachable objects out of packs that will be deleted, into new packs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence

from ortet._util.codec import Compressor
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.frame import FrameBatches
from ortet.objects.source import FrameSource, ObjectLocation
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import SEAL_BYTES, Tail

_SMALL_PACK_BYTES = SEAL_BYTES // 8
_MERGE_MIN_PACKS = 4
_FRAGMENTED_MIN_FRAMES = 256


def choose_packs(
    sources: Sequence[FrameSource], reachable: Collection[Oid], *, min_garbage: float
) -> tuple[list[FrameSource], list[FrameSource]]:
    """Return the packs to rewrite and the packs to keep.

    A pack is rewritten for one of three reasons:
    - It has enough garbage. A second copy of an object is garbage.
    - It has many tiny frames, from many small commits.
    - It is small, and there are several small packs to merge.
    """
    sources = sorted(sources, key=lambda source: source.id)
    small = [source for source in sources if source.end < _SMALL_PACK_BYTES]
    merge = len(small) >= _MERGE_MIN_PACKS
    victims: list[FrameSource] = []
    remaining: list[FrameSource] = []
    seen: set[Oid] = set()
    for source in sources:
        total = dead = 0
        frames: set[int] = set()
        for oid, location in source.locations():
            frames.add(location[1])
            total += location[3] + 1
            if oid not in reachable or oid in seen:
                dead += location[3] + 1
            else:
                seen.add(oid)
        crumbs = (
            len(frames) >= _FRAGMENTED_MIN_FRAMES and total < len(frames) * frame.FRAME_BYTES // 8
        )
        worth = dead > 0 and dead >= min_garbage * total
        chosen = worth or crumbs or (merge and source.end < _SMALL_PACK_BYTES)
        (victims if chosen else remaining).append(source)
    return victims, remaining


class Repacker:
    """Writes new packs. With `write` False it only counts what they would hold."""

    def __init__(self, objects: PackedObjectStore, *, write: bool) -> None:
        self.objects = 0
        self.bytes = 0
        self.packs = 0
        self._objects = objects
        self._write = write
        self._compressor = Compressor()
        self._kept_packs: Sequence[FrameSource] = ()
        self._copied: set[Oid] = set()
        self._batches = FrameBatches()
        self._tail: Tail | None = None
        self._tail_bytes = 0

    def set_kept_packs(self, packs: Sequence[FrameSource]) -> None:
        """Set the packs that are kept. Their intact objects need not be copied."""
        self._kept_packs = packs

    def copy(
        self, located: Iterable[tuple[Oid, ObjectLocation]], reachable: Collection[Oid]
    ) -> None:
        """Copy the reachable objects of one pack that no kept pack has."""
        wanted = [
            (oid, location)
            for oid, location in located
            if oid in reachable and oid not in self._copied and not self._is_in_kept_pack(oid)
        ]
        wanted.sort(key=lambda found: found[1][1:3])
        self._copied.update(oid for oid, _ in wanted)
        for oid, location in wanted:
            full = self._batches.add((oid, location[4], self._read(oid, location)))
            if full is not None:
                self._append(full)

    def _is_in_kept_pack(self, oid: Oid) -> bool:
        for source in self._kept_packs:
            with contextlib.suppress(Corrupt, NotFound):
                location = source.find(oid)
                if location is not None:
                    self._objects.cache.load(source, location[1])
                    return True
        return False

    def _read(self, oid: Oid, location: ObjectLocation) -> bytes:
        source, offset, start, length, _ = location
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
                self._tail = self._objects.pack_set.new_tail()
            self._tail.append(data, items)
        if self._tail_bytes >= SEAL_BYTES:
            self._seal()

    def seal(self) -> None:
        """Make the copies durable as a pack."""
        for items in self._batches.drain():
            self._append(items)
        if self._tail_bytes:
            self._seal()

    def discard_unsealed(self) -> None:
        """Discard the copies since the last sealed pack, because there is no space for them."""
        self._batches.drain()
        self.bytes -= self._tail_bytes
        self.objects = self._tail_bytes = 0
        if self._tail is not None:
            self._objects.pack_set.discard(self._tail)
            self._tail = None

    def _seal(self) -> None:
        self.packs += 1
        self._tail_bytes = 0
        if self._tail is not None:
            self._objects.pack_set.seal(self._tail, solid=True)
            self._tail = None
