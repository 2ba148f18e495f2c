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
from ortet.objects.absent import FILTER_WORD_OFFSET

_MAGIC = b"\xa7ORI"
_VERSION = 1
_HEAD = struct.Struct("<4sB3xII")  # magic, version, entries, bytes of the list of packs
_FANOUT = struct.Struct("<256I")
_ROW = struct.Struct("<HQIIB")
_ENTRY_BYTES = OID_BYTES + _ROW.size
_CHECKSUM_BYTES = 8
_CHECKSUMS_OFFSET = _HEAD.size + _FANOUT.size
_PACK_LIST_OFFSET = _CHECKSUMS_OFFSET + 256 * _CHECKSUM_BYTES
_FILTER_WORD_OF_OID = struct.Struct(f"={FILTER_WORD_OFFSET}xI{OID_BYTES - FILTER_WORD_OFFSET - 4}x")
_LINEAR_SEARCH_MAX = 64
_EMPTY_CHECKSUM = checksum(b"")

PackLocation = tuple[int, int, int, int, int]
"""Number of the pack, frame offset in it, offset in the frame's bytes, length, kind."""

IndexEntry = tuple[Oid, int, int, int, int, int]
"""An oid and its Place."""

CoveredPack = tuple[str, int]
"""Id and bytes of a pack."""


def encode_index(packs: Sequence[CoveredPack], entries: Iterable[IndexEntry]) -> bytes:
    """The bytes of an index file."""
    slots: list[list[bytes]] = [[] for _ in range(256)]
    for oid, *place in entries:
        slots[oid[0]].append(oid + _ROW.pack(*place))
    return encode_slots(packs, slots)


def encode_slots(packs: Sequence[CoveredPack], slots: Iterable[list[bytes]]) -> bytes:
    """The same from entries that are bytes already, those of each slot in any order."""
    fan: list[int] = []
    sums: list[bytes] = []
    body: list[bytes] = []
    total = 0
    for slot in slots:
        if not slot:  # most of them, in the pack of a single commit
            fan.append(total)
            sums.append(_EMPTY_CHECKSUM)
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
    head = _HEAD.pack(_MAGIC, _VERSION, total, len(names)) + _FANOUT.pack(*fan) + b"".join(sums)
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


def open_index(path: Path) -> PackIndex:
    """Map an index file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _PACK_LIST_OFFSET:
            raise _corrupt_index("it is cut short")
        return PackIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _corrupt_index(why: str) -> Corrupt:
    return Corrupt("bad_index", f"{why}; it is made again from its pack")


class PackIndex:
    """An index, mapped or in memory. Corrupt when what is read does not match its checksum: it has
    to be made again then."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        head = data[:_PACK_LIST_OFFSET]
        self.count: int
        magic, version, self.count, names = _HEAD.unpack_from(head)
        end = _PACK_LIST_OFFSET + names
        listed = data[_PACK_LIST_OFFSET:end]
        if (magic, version, checksum(head, listed)) != (
            _MAGIC,
            _VERSION,
            data[end : end + _CHECKSUM_BYTES],
        ):
            raise _corrupt_index("its header does not match its checksum")
        self._body_offset = end + _CHECKSUM_BYTES
        if len(data) != self._body_offset + self.count * _ENTRY_BYTES:
            raise _corrupt_index("it is cut short")
        self.packs: list[CoveredPack] = decode(list[CoveredPack], listed)
        self._fanout = (0, *_FANOUT.unpack_from(head, _HEAD.size))
        self._checksums = head[_CHECKSUMS_OFFSET:]
        self._verified_slots = bytearray(256)

    def _slot_bounds(self, slot: int) -> tuple[int, int]:
        """Offset and number of entries of a slot, checked."""
        low = self._fanout[slot]
        count = self._fanout[slot + 1] - low
        base = self._body_offset + low * _ENTRY_BYTES
        if count and not self._verified_slots[slot]:
            known = self._checksums[slot * _CHECKSUM_BYTES : (slot + 1) * _CHECKSUM_BYTES]
            if checksum(self._data[base : base + count * _ENTRY_BYTES]) != known:
                raise _corrupt_index(f"slot {slot} does not match its checksum")
            self._verified_slots[slot] = 1
        return base, count

    def find(self, oid: Oid) -> PackLocation | None:
        """The first place of an object."""
        slot = oid[0]
        low = self._fanout[slot]
        count = self._fanout[slot + 1] - low
        if not count:
            return None
        base = (
            self._body_offset + low * _ENTRY_BYTES
            if self._verified_slots[slot]
            else self._slot_bounds(slot)[0]
        )
        first, last = (0, count) if count <= _LINEAR_SEARCH_MAX else self._bisect(base, count, oid)
        block = self._data[base + first * OID_BYTES : base + last * OID_BYTES]
        at = block.find(oid)
        while at % OID_BYTES and at > 0:
            at = block.find(oid, at + 1)
        if at < 0:
            return None
        return self._row(base, count, first + at // OID_BYTES)

    def find_all(self, oid: Oid) -> Iterator[PackLocation]:
        """Every place of an object: it may be in several packs."""
        base, count = self._slot_bounds(oid[0])
        for number in range(self._bisect(base, count, oid)[0], count):
            found = self._oid(base, number)
            if found > oid:
                return
            if found == oid:
                yield self._row(base, count, number)

    def _oid(self, base: int, number: int) -> bytes:
        at = base + number * OID_BYTES
        return self._data[at : at + OID_BYTES]

    def filter_words(self, slot: int) -> list[int]:
        """The word of each oid in a slot that a filter goes by: see absent.py."""
        base, count = self._slot_bounds(slot)
        oids = self._data[base : base + count * OID_BYTES]
        return [word for (word,) in _FILTER_WORD_OF_OID.iter_unpack(oids)]

    def _row(self, base: int, count: int, number: int) -> PackLocation:
        return _ROW.unpack_from(self._data, base + count * OID_BYTES + number * _ROW.size)

    def _bisect(self, base: int, count: int, oid: bytes) -> tuple[int, int]:
        """A stretch of a slot, short if it can be, with the first place of `oid` if it has any."""
        low, high = 0, count
        while high - low > _LINEAR_SEARCH_MAX:
            middle = (low + high) // 2
            if self._oid(base, middle) < oid:
                low = middle
            else:
                high = middle + 1
        return low, high

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """(oid, kind) of every object with low <= oid <= high, in order."""
        for slot in range(low[0], high[0] + 1):
            base, count = self._slot_bounds(slot)
            for number in range(self._bisect(base, count, low)[0], count):
                oid = self._oid(base, number)
                if oid > high:
                    break
                if oid >= low:
                    yield Oid(oid), self._row(base, count, number)[4]

    def __iter__(self) -> Iterator[IndexEntry]:
        for slot in range(256):
            if self._fanout[slot] == self._fanout[slot + 1]:
                continue
            base, count = self._slot_bounds(slot)
            for number in range(count):
                yield Oid(self._oid(base, number)), *self._row(base, count, number)

    def entries(self, slot: int, pack_numbers: Sequence[int]) -> Iterator[bytes]:
        """Entries of a slot as `encode_slots` takes them, with other numbers for the packs; those
        of packs numbered -1 are left out."""
        base, count = self._slot_bounds(slot)
        for number in range(count):
            pack, *rest = self._row(base, count, number)
            if pack_numbers[pack] >= 0:
                yield self._oid(base, number) + _ROW.pack(pack_numbers[pack], *rest)
