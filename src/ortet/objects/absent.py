"""That an object is in no pack, said without searching each: most of what is put is new."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ortet.errors import Corrupt
from ortet.ids import Oid

_BUILD_FILTER_AFTER_LOOKUPS = 3
"""Searches of a slot before its filter is made: a single commit does without."""
_FILTER_BYTES_PER_OBJECT = 8
"""Bytes of a filter for each object: one search in eight finds nothing after all."""

FILTER_WORD_OFFSET = 8
"""Where in an oid the word lies that the filter goes by; the slot goes by its first byte."""
_FILTER_WORD = Struct("=I")

SlotWords = Callable[[int], list[int]]
"""The words of all objects in a slot."""


class AbsenceFilter:
    """A filter for each of the 256 slots, made when a slot is asked about again and again."""

    def __init__(self, words_of_slot: SlotWords) -> None:
        self._words_of_slot = words_of_slot
        self._filters: list[bytearray | None] = [None] * 256
        self._lookup_counts = bytearray(256)

    def __contains__(self, oid: Oid) -> bool:
        """True: no table has it. False: it takes a search to know."""
        filter_ = self._filters[oid[0]]
        if filter_ is None:
            slot = oid[0]
            if self._lookup_counts[slot] < _BUILD_FILTER_AFTER_LOOKUPS:
                self._lookup_counts[slot] += 1
                return False
            try:
                filter_ = self._filters[slot] = self._build_filter(slot)
            except Corrupt:  # the search comes upon it, and knows what to do
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
