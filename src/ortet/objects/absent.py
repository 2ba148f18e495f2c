"""A filter that proves that an object is in no pack, without searching each index.

Most objects that are put are new. A module of its own, so that `pack_index` and `pack_set` share
the definition of the filter word.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ortet.errors import Corrupt
from ortet.ids import Oid

_BUILD_FILTER_AFTER_LOOKUPS = 3
"""Look-ups in a slot before its filter is built. A single small commit never builds one."""
_FILTER_BYTES_PER_OBJECT = 8
"""Filter bytes for each object. One look-up of an absent object in eight still needs a search."""

FILTER_WORD_OFFSET = 8
"""The offset in an oid of the word that the filter uses. The first byte of the oid is the slot."""
_FILTER_WORD = Struct("=I")

SlotWords = Callable[[int], list[int]]
"""Returns the filter words of all objects in a slot."""


class AbsenceFilter:
    """One filter for each of the 256 slots, built after several look-ups in that slot."""

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
