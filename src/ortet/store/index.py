"""Where each object of a sealed pack is: a sorted table with 256-way fan-out, mapped, rebuildable
from the pack.

Entries of one fan-out slot lie together, oids first, then rows, and each slot has its own checksum,
looked at when the slot is first used: opening an index costs the same whatever its size.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from ortet.codec import checksum
from ortet.errors import Corrupt
from ortet.ids import OID_BYTES, Oid

_MAGIC = b"\xa7ORI"
_VERSION = 1
_HEAD = struct.Struct("<4sB3xIQ")  # magic, version, entries, bytes of the pack
_FAN = struct.Struct("<256I")
_ROW = struct.Struct("<QIIB")
_ENTRY = OID_BYTES + _ROW.size
_SUM = 8
_SUMS = _HEAD.size + _FAN.size
_HEAD_SUM = _SUMS + 256 * _SUM
_BODY = _HEAD_SUM + _SUM
_NARROW = 64

Place = tuple[int, int, int, int]
"""Frame offset in the pack, offset in the frame's bytes, length, kind."""

Located = tuple[Oid, int, int, int, int]
"""An oid and its Place."""


def encode_index(entries: Iterable[Located], *, pack_bytes: int) -> bytes:
    """The bytes of an index file."""
    slots: list[list[Located]] = [[] for _ in range(256)]
    for entry in entries:
        slots[entry[0][0]].append(entry)
    fan: list[int] = []
    sums: list[bytes] = []
    body: list[bytes] = []
    total = 0
    for slot in slots:
        data, count = _encode_slot(slot)
        total += count
        fan.append(total)
        sums.append(checksum(data))
        body.append(data)
    head = _HEAD.pack(_MAGIC, _VERSION, total, pack_bytes) + _FAN.pack(*fan) + b"".join(sums)
    return b"".join((head, checksum(head), *body))


def _encode_slot(slot: list[Located]) -> tuple[bytes, int]:
    slot.sort()
    unique = {entry[0]: entry for entry in reversed(slot)}
    ordered = [unique[oid] for oid in sorted(unique)]
    rows = [_ROW.pack(frame, start, length, kind) for _, frame, start, length, kind in ordered]
    return b"".join([*[entry[0] for entry in ordered], *rows]), len(ordered)


def write_index(path: Path, data: bytes) -> None:
    """Write durably under a temporary name, then rename."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def open_index(path: Path, *, pack_bytes: int) -> Index:
    """Map an index file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _BODY:
            raise _damaged("it is cut short")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Index(data, pack_bytes=pack_bytes)


def _damaged(why: str) -> Corrupt:
    return Corrupt("bad_index", f"{why}; it is made again from its pack")


class Index:
    """An index in memory or mapped. Corrupt when what is read does not match its checksum: it has
    to be made again then."""

    def __init__(self, data: bytes | mmap.mmap, *, pack_bytes: int) -> None:
        self._map = data
        size = len(data)
        head = data[:_BODY]
        self.count: int
        magic, version, self.count, pack = _HEAD.unpack_from(head)
        if magic != _MAGIC or version != _VERSION or checksum(head[:_HEAD_SUM]) != head[_HEAD_SUM:]:
            raise _damaged("its header does not match its checksum")
        if size != _BODY + self.count * _ENTRY or pack != pack_bytes:
            raise _damaged("it belongs to another state of the pack")
        self._fan = (0, *_FAN.unpack_from(head, _HEAD.size))
        self._sums = head[_SUMS:_HEAD_SUM]
        self._seen = bytearray(256)

    def _slot(self, slot: int) -> tuple[int, int]:
        """Offset and number of entries of a slot, checked."""
        low = self._fan[slot]
        count = self._fan[slot + 1] - low
        base = _BODY + low * _ENTRY
        if not self._seen[slot]:
            known = self._sums[slot * _SUM : (slot + 1) * _SUM]
            if checksum(self._map[base : base + count * _ENTRY]) != known:
                raise _damaged(f"slot {slot} does not match its checksum")
            self._seen[slot] = 1
        return base, count

    def find(self, oid: Oid) -> Place | None:
        slot = oid[0]
        low = self._fan[slot]
        count = self._fan[slot + 1] - low
        if not count:
            return None
        base = _BODY + low * _ENTRY if self._seen[slot] else self._slot(slot)[0]
        first, last = (0, count) if count <= _NARROW else self._bisect(base, count, oid)
        block = self._map[base + first * OID_BYTES : base + last * OID_BYTES]
        at = block.find(oid)
        while at % OID_BYTES and at > 0:
            at = block.find(oid, at + 1)
        if at < 0:
            return None
        return self._row(base, count, first + at // OID_BYTES)

    def _row(self, base: int, count: int, number: int) -> Place:
        return _ROW.unpack_from(self._map, base + count * OID_BYTES + number * _ROW.size)

    def _bisect(self, base: int, count: int, oid: bytes) -> tuple[int, int]:
        """A stretch of a slot, short enough to be searched at once, that holds `oid` if anything
        does."""
        low, high = 0, count
        while high - low > _NARROW:
            middle = (low + high) // 2
            at = base + middle * OID_BYTES
            if self._map[at : at + OID_BYTES] <= oid:
                low = middle
            else:
                high = middle
        return low, high

    def prefix(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object with low <= oid <= high, in order."""
        for slot in range(low[0], high[0] + 1):
            base, count = self._slot(slot)
            first = self._bisect(base, count, low)[0]
            for number in range(first, count):
                at = base + number * OID_BYTES
                oid = self._map[at : at + OID_BYTES]
                if oid > high:
                    break
                if oid >= low:
                    yield Oid(oid), self._row(base, count, number)[3]

    def __iter__(self) -> Iterator[Located]:
        for slot in range(256):
            base, count = self._slot(slot)
            for number in range(count):
                at = base + number * OID_BYTES
                yield Oid(self._map[at : at + OID_BYTES]), *self._row(base, count, number)
