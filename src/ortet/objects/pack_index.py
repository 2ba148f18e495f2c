"""Pack indexes: sorted, memory-mapped tables from object id to location, with a 256-way fan-out.

An index covers one pack or several. A store of a thousand packs is searched through a few tables.
The entries of a fan-out slot are stored together: first the oids, then the rows. Each slot has its
own checksum, which is verified at the first use of the slot. Opening an index therefore takes the
same time for any size. Every index can be rebuilt from its packs.

Most objects that are put are new. An `AbsenceFilter` proves that an object is in no pack without a
search in each index.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ortet._util.codec import checksum, decode, encode
from ortet.errors import Corrupt
from ortet.ids import OID_BYTES, Oid

_MAGIC = b"\xa7ORI"
_VERSION = 1
_HEAD = struct.Struct("<4sB3xII")  # magic, version, number of entries, bytes of the pack list
_FANOUT = struct.Struct("<256I")
_ROW = struct.Struct("<HQIIB")
_ENTRY_BYTES = OID_BYTES + _ROW.size
_CHECKSUM_BYTES = 8
_CHECKSUMS_OFFSET = _HEAD.size + _FANOUT.size
_PACK_LIST_OFFSET = _CHECKSUMS_OFFSET + 256 * _CHECKSUM_BYTES
FILTER_WORD_OFFSET = 8
"""The offset in an oid of the word that the filter uses. The first byte of the oid is the slot."""
_FILTER_WORD_OF_OID = struct.Struct(f"={FILTER_WORD_OFFSET}xI{OID_BYTES - FILTER_WORD_OFFSET - 4}x")
_LINEAR_SEARCH_MAX = 64
_EMPTY_CHECKSUM = checksum(b"")

PackLocation = tuple[int, int, int, int, int]
"""Number of the pack, offset of the frame, offset in the frame's payload, length, kind."""

IndexEntry = tuple[Oid, int, int, int, int, int]
"""An oid, followed by the fields of its PackLocation."""

CoveredPack = tuple[str, int]
"""Id and size in bytes of a pack."""

_BUILD_FILTER_AFTER_LOOKUPS = 3
"""Look-ups in a slot before its filter is built. A single small commit never builds one."""
_FILTER_BYTES_PER_OBJECT = 8
"""Filter bytes for each object. One look-up of an absent object in eight still needs a search."""

_FILTER_WORD = struct.Struct("=I")

SlotWords = Callable[[int], list[int]]
"""Returns the filter words of all objects in a slot."""


def encode_index(packs: Sequence[CoveredPack], entries: Iterable[IndexEntry]) -> bytes:
    """Return the bytes of an index file."""
    slots: list[list[bytes]] = [[] for _ in range(256)]
    for oid, *place in entries:
        slots[oid[0]].append(oid + _ROW.pack(*place))
    return encode_slots(packs, slots)


def encode_slots(packs: Sequence[CoveredPack], slots: Iterable[list[bytes]]) -> bytes:
    """Return the bytes of an index file from encoded entries.

    A slot may have its entries in any order.
    """
    fan: list[int] = []
    sums: list[bytes] = []
    body: list[bytes] = []
    total = 0
    for slot in slots:
        if not slot:  # most slots are empty in the pack of a single commit
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
    """Write an index durably to a temporary file, then rename it.

    Without `sync` a power failure may damage the index. Its checksums then detect the damage.
    """
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
    """Memory-map an index file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < _PACK_LIST_OFFSET:
            raise _corrupt_index("it is cut short")
        return PackIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _corrupt_index(why: str) -> Corrupt:
    return Corrupt("bad_index", f"{why}; it is made again from its pack")


class PackIndex:
    """A memory-mapped or in-memory index.

    Methods raise Corrupt if the data does not match its checksum. The index must then be rebuilt.
    """

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
        """Return offset and number of entries of a slot, after verifying its checksum."""
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
        """Return the first location of an object, or None."""
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
        position = block.find(oid)
        while position % OID_BYTES and position > 0:
            position = block.find(oid, position + 1)
        if position < 0:
            return None
        return self._row(base, count, first + position // OID_BYTES)

    def find_all(self, oid: Oid) -> Iterator[PackLocation]:
        """Yield every location of an object. It may be in several packs."""
        base, count = self._slot_bounds(oid[0])
        for number in range(self._bisect(base, count, oid)[0], count):
            candidate = self._oid(base, number)
            if candidate > oid:
                return
            if candidate == oid:
                yield self._row(base, count, number)

    def _oid(self, base: int, number: int) -> bytes:
        start = base + number * OID_BYTES
        return self._data[start : start + OID_BYTES]

    def filter_words(self, slot: int) -> list[int]:
        """Return the filter word of each oid in a slot. See AbsenceFilter."""
        base, count = self._slot_bounds(slot)
        oids = self._data[base : base + count * OID_BYTES]
        return [word for (word,) in _FILTER_WORD_OF_OID.iter_unpack(oids)]

    def _row(self, base: int, count: int, number: int) -> PackLocation:
        return _ROW.unpack_from(self._data, base + count * OID_BYTES + number * _ROW.size)

    def _bisect(self, base: int, count: int, oid: bytes) -> tuple[int, int]:
        """Return a short range of a slot. It includes the first entry of `oid`, if any."""
        low, high = 0, count
        while high - low > _LINEAR_SEARCH_MAX:
            middle = (low + high) // 2
            if self._oid(base, middle) < oid:
                low = middle
            else:
                high = middle + 1
        return low, high

    def iter_range(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        """Yield (oid, kind) of every object with low <= oid <= high, sorted."""
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
        """Yield the encoded entries of a slot with new pack numbers, for `encode_slots`.

        Entries of packs with the new number -1 are skipped.
        """
        base, count = self._slot_bounds(slot)
        for number in range(count):
            pack, *rest = self._row(base, count, number)
            if pack_numbers[pack] >= 0:
                yield self._oid(base, number) + _ROW.pack(pack_numbers[pack], *rest)


class AbsenceFilter:
    """Proves that an object is in none of several indexes, without searching each one.

    Each of the 256 slots has its own filter, built after several look-ups in that slot.
    """

    def __init__(self, words_of_slot: SlotWords) -> None:
        self._words_of_slot = words_of_slot
        self._filters: list[bytearray | None] = [None] * 256
        self._lookup_counts = bytearray(256)

    def __contains__(self, oid: Oid) -> bool:
        """Return True if no table has the object. False means that a search is needed."""
        filter_ = self._filters[oid[0]]
        if filter_ is None:
            slot = oid[0]
            if self._lookup_counts[slot] < _BUILD_FILTER_AFTER_LOOKUPS:
                self._lookup_counts[slot] += 1
                return False
            try:
                filter_ = self._filters[slot] = self._build_filter(slot)
            except Corrupt:  # the search finds the damage and handles it
                return False
        return not filter_[
            _FILTER_WORD.unpack_from(oid, FILTER_WORD_OFFSET)[0] & (len(filter_) - 1)
        ]

    def _build_filter(self, slot: int) -> bytearray:
        words = self._words_of_slot(slot)
        size = 1 << (len(words) * _FILTER_BYTES_PER_OBJECT).bit_length()
        filter_, mask = bytearray(size), size - 1
        for word in words:
            filter_[word & mask] = 1
        return filter_
