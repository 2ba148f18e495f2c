"""Where each object of a sealed pack is: a sorted, mapped table with 256-way fan-out.

An index covers one pack, or several: a store of a thousand packs is searched through a handful of
tables. Entries of one fan-out slot lie together, oids first, then rows, and each slot has its own
checksum, looked at when the slot is first used: opening costs the same whatever the size. All of it
can be made again from the packs.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ortet._util.codec import checksum, decode, encode
from ortet.errors import Corrupt
from ortet.ids import OID_BYTES, Oid
from ortet.objects.absent import AT

_MAGIC = b"\xa7ORI"
_VERSION = 1
_HEAD = struct.Struct("<4sB3xII")  # magic, version, entries, bytes of the list of packs
_FAN = struct.Struct("<256I")
_ROW = struct.Struct("<HQIIB")
_ENTRY = OID_BYTES + _ROW.size
_SUM = 8
_SUMS = _HEAD.size + _FAN.size
_NAMES = _SUMS + 256 * _SUM
_WORD = struct.Struct(f"={AT}xI{OID_BYTES - AT - 4}x")
_NARROW = 64
_EMPTY = checksum(b"")

Place = tuple[int, int, int, int, int]
"""Number of the pack, frame offset in it, offset in the frame's bytes, length, kind."""

Located = tuple[Oid, int, int, int, int, int]
"""An oid and its Place."""

Covered = tuple[str, int]
"""Id and bytes of a pack."""


def encode_index(packs: Sequence[Covered], entries: Iterable[Located]) -> bytes:
    """The bytes of an index file."""
    slots: list[list[bytes]] = [[] for _ in range(256)]
    for oid, *place in entries:
        slots[oid[0]].append(oid + _ROW.pack(*place))
    return encode_slots(packs, slots)


def encode_slots(packs: Sequence[Covered], slots: Iterable[list[bytes]]) -> bytes:
    """The same from entries that are bytes already, those of each slot in any order."""
    fan: list[int] = []
    sums: list[bytes] = []
    body: list[bytes] = []
    total = 0
    for slot in slots:
        if not slot:  # most of them, in the pack of a single commit
            fan.append(total)
            sums.append(_EMPTY)
            continue
        slot.sort()
        data = b"".join(
            [*[entry[:OID_BYTES] for entry in slot], *[entry[OID_BYTES:] for entry in slot]]
        )
        total += len(slot)
        fan.append(total)
        sums.append(checksum(data))
        body.append(data)
    names = encode(list(packs))
    head = _HEAD.pack(_MAGIC, _VERSION, total, len(names)) + _FAN.pack(*fan) + b"".join(sums)
    return b"".join((head, names, checksum(head, names), *body))


def write_index(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write durably under a temporary name, then rename. Without `sync` a power cut may damage it,
    which its checksums show."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def open_index(path: Path) -> Index:
    """Map an index file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _NAMES:
            raise _damaged("it is cut short")
        return Index(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _damaged(why: str) -> Corrupt:
    return Corrupt("bad_index", f"{why}; it is made again from its pack")


class Index:
    """An index, mapped or in memory. Corrupt when what is read does not match its checksum: it has
    to be made again then."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._map = data
        head = data[:_NAMES]
        self.count: int
        magic, version, self.count, names = _HEAD.unpack_from(head)
        end = _NAMES + names
        listed = data[_NAMES:end]
        if (magic, version, checksum(head, listed)) != (_MAGIC, _VERSION, data[end : end + _SUM]):
            raise _damaged("its header does not match its checksum")
        self._body = end + _SUM
        if len(data) != self._body + self.count * _ENTRY:
            raise _damaged("it is cut short")
        self.packs: list[Covered] = decode(list[Covered], listed)
        self._fan = (0, *_FAN.unpack_from(head, _HEAD.size))
        self._sums = head[_SUMS:]
        self._seen = bytearray(256)

    def _slot(self, slot: int) -> tuple[int, int]:
        """Offset and number of entries of a slot, checked."""
        low = self._fan[slot]
        count = self._fan[slot + 1] - low
        base = self._body + low * _ENTRY
        if count and not self._seen[slot]:
            known = self._sums[slot * _SUM : (slot + 1) * _SUM]
            if checksum(self._map[base : base + count * _ENTRY]) != known:
                raise _damaged(f"slot {slot} does not match its checksum")
            self._seen[slot] = 1
        return base, count

    def find(self, oid: Oid) -> Place | None:
        """The first place of an object."""
        slot = oid[0]
        low = self._fan[slot]
        count = self._fan[slot + 1] - low
        if not count:
            return None
        base = self._body + low * _ENTRY if self._seen[slot] else self._slot(slot)[0]
        first, last = (0, count) if count <= _NARROW else self._bisect(base, count, oid)
        block = self._map[base + first * OID_BYTES : base + last * OID_BYTES]
        at = block.find(oid)
        while at % OID_BYTES and at > 0:
            at = block.find(oid, at + 1)
        if at < 0:
            return None
        return self._row(base, count, first + at // OID_BYTES)

    def find_all(self, oid: Oid) -> Iterator[Place]:
        """Every place of an object: it may be in several packs."""
        base, count = self._slot(oid[0])
        for number in range(self._bisect(base, count, oid)[0], count):
            found = self._oid(base, number)
            if found > oid:
                return
            if found == oid:
                yield self._row(base, count, number)

    def _oid(self, base: int, number: int) -> bytes:
        at = base + number * OID_BYTES
        return self._map[at : at + OID_BYTES]

    def words(self, slot: int) -> list[int]:
        """The word of each oid in a slot that a filter goes by: see absent.py."""
        base, count = self._slot(slot)
        oids = self._map[base : base + count * OID_BYTES]
        return [word for (word,) in _WORD.iter_unpack(oids)]

    def _row(self, base: int, count: int, number: int) -> Place:
        return _ROW.unpack_from(self._map, base + count * OID_BYTES + number * _ROW.size)

    def _bisect(self, base: int, count: int, oid: bytes) -> tuple[int, int]:
        """A stretch of a slot, short if it can be, with the first place of `oid` if it has any."""
        low, high = 0, count
        while high - low > _NARROW:
            middle = (low + high) // 2
            if self._oid(base, middle) < oid:
                low = middle
            else:
                high = middle + 1
        return low, high

    def prefix(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object with low <= oid <= high, in order."""
        for slot in range(low[0], high[0] + 1):
            base, count = self._slot(slot)
            for number in range(self._bisect(base, count, low)[0], count):
                oid = self._oid(base, number)
                if oid > high:
                    break
                if oid >= low:
                    yield Oid(oid), self._row(base, count, number)[4]

    def __iter__(self) -> Iterator[Located]:
        for slot in range(256):
            if self._fan[slot] == self._fan[slot + 1]:
                continue
            base, count = self._slot(slot)
            for number in range(count):
                yield Oid(self._oid(base, number)), *self._row(base, count, number)

    def entries(self, slot: int, renumber: Sequence[int]) -> Iterator[bytes]:
        """Entries of a slot as `encode_slots` takes them, with other numbers for the packs; those
        of packs numbered -1 are left out."""
        base, count = self._slot(slot)
        for number in range(count):
            pack, *rest = self._row(base, count, number)
            if renumber[pack] >= 0:
                yield self._oid(base, number) + _ROW.pack(renumber[pack], *rest)
