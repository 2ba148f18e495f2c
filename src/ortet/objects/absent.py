"""That an object is in no pack, said without searching each: most of what is put is new."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from ortet.errors import Corrupt
from ortet.ids import Oid

_PATIENCE = 3
"""Searches of a slot before its filter is made: a single commit does without."""
_SPARSE = 8
"""Bytes of a filter for each object: one search in eight finds nothing after all."""

AT = 8
"""Where in an oid the word lies that the filter goes by; the slot goes by its first byte."""
_WORD = Struct("=I")

Words = Callable[[int], list[int]]
"""The words of all objects in a slot."""


class Absent:
    """A filter for each of the 256 slots, made when a slot is asked about again and again."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._filters: list[bytearray | None] = [None] * 256
        self._asked = bytearray(256)

    def __contains__(self, oid: Oid) -> bool:
        """True: no table has it. False: it takes a search to know."""
        filter_ = self._filters[oid[0]]
        if filter_ is None:
            slot = oid[0]
            if self._asked[slot] < _PATIENCE:
                self._asked[slot] += 1
                return False
            try:
                filter_ = self._filters[slot] = self._make(slot)
            except Corrupt:  # the search comes upon it, and knows what to do
                return False
        return not filter_[_WORD.unpack_from(oid, AT)[0] & (len(filter_) - 1)]

    def _make(self, slot: int) -> bytearray:
        words = self._words(slot)
        size = 1 << (len(words) * _SPARSE).bit_length()
        filter_, mask = bytearray(size), size - 1
        for word in words:
            filter_[word & mask] = 1
        return filter_
