"""An in-memory view of all items in a LangGraph store.

The view is loaded from the rows once and then follows the journal. It can be rebuilt at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ortet.integrations.langgraph.store.items import ItemEntry, ItemId, changes_of, size_of
from ortet.integrations.langgraph.store.journal import ItemJournal
from ortet.memory.lexical.scoring import TermFrequencies

_MAX_CACHE_BYTES = 256 << 20
"""Estimated number of bytes of values and words to cache."""


class ViewItem:
    """One item. Cached data about its value is dropped when the item is put again."""

    __slots__ = ("entry", "id", "is_expired", "term_counts", "value", "vectors")

    def __init__(self, id_: ItemId, entry: ItemEntry) -> None:
        self.id = id_
        self.reset(entry)

    def reset(self, entry: ItemEntry) -> None:
        self.entry = entry
        self.value: dict[str, Any] | None = None
        self.term_counts: TermFrequencies | None = None
        self.vectors: Any = None  # rows of the matrix, once loaded
        self.is_expired = False


class ItemView:
    """The items of a store as this process sees them, for one thread at a time."""

    def __init__(self, journal: ItemJournal) -> None:
        self._journal = journal
        self._epoch = (0, 0)
        self.generation = 0  # changes when the matrix rows become invalid
        self._clear("")

    def _clear(self, timeline: str) -> None:
        self._timeline = timeline
        self._upto = 0
        self._items: dict[tuple[str, ...], dict[str, ViewItem]] = {}
        # by each prefix: the namespaces that start with it
        self._namespaces_by_prefix: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
        self._cached_bytes = 0

    def refresh(self) -> None:
        """Apply everything that was written before this call."""
        timeline, epoch = self._journal.timeline(), self._journal.epoch()
        if timeline != self._timeline or epoch != self._epoch:
            self._epoch = epoch
            self._load(timeline)
        last = self._journal.last(timeline)
        if last > self._upto:
            for event in self._journal.events(timeline, self._upto, last):
                for id_, entry in changes_of(event, self._entry):
                    self._change(id_, entry)
                self._upto = event.seq

    def _load(self, timeline: str) -> None:
        self._clear(timeline)
        self.generation += 1
        # Events written while the rows are read are applied afterwards.
        self._upto = self._journal.last(timeline)
        for id_, entry in sorted(self._journal.rows(), key=lambda one: one[1].born):
            self._change(id_, entry)

    def _entry(self, id_: ItemId) -> ItemEntry | None:
        seen = self._items.get(id_[0], {}).get(id_[1])
        return seen.entry if seen else None

    def _change(self, id_: ItemId, entry: ItemEntry | None) -> None:
        namespace, key = id_
        inside = self._items.get(namespace)
        if entry is None:
            if inside is not None and key in inside:
                inside.pop(key).vectors = None
                if not inside:
                    del self._items[namespace]
                    for depth in range(len(namespace) + 1):
                        del self._namespaces_by_prefix[namespace[:depth]][namespace]
            return
        if inside is None:
            inside = self._items[namespace] = {}
            for depth in range(len(namespace) + 1):
                self._namespaces_by_prefix.setdefault(namespace[:depth], {})[namespace] = None
        seen = inside.get(key)
        if seen is None:
            inside[key] = ViewItem(id_, entry)
        elif seen.entry.born == entry.born:
            seen.reset(entry)
        else:  # The item was deleted and created again: it comes last.
            inside.pop(key).vectors = None
            inside[key] = ViewItem(id_, entry)

    def update_expiry(self, entries: dict[ItemId, ItemEntry]) -> None:
        for id_, entry in entries.items():
            seen = self._items.get(id_[0], {}).get(id_[1])
            if seen is not None and seen.entry.seq == entry.seq:
                seen.entry = entry

    # Reading.

    def namespaces(self, now: int) -> Iterator[tuple[str, ...]]:
        """Yield the namespaces that have live items."""
        for namespace, inside in list(self._items.items()):
            if any(self._is_live(seen, now) for seen in inside.values()):
                yield namespace

    def items(self, prefix: tuple[str, ...], now: int) -> Iterator[ViewItem]:
        """Yield the live items under a prefix.

        Namespaces are ordered by their oldest item. Items of a namespace are in insertion order.
        """
        spaces = [self._items[one] for one in self._namespaces_by_prefix.get(prefix, ())]
        if len(spaces) > 1:
            spaces.sort(key=lambda inside: next(iter(inside.values())).entry.born)
        for inside in spaces:
            for seen in list(inside.values()):
                if not seen.entry.expires or self._is_live(seen, now):
                    yield seen

    def expired_ids(self, now: int) -> list[ItemId]:
        """Return the ids of expired items."""
        items = (seen for inside in self._items.values() for seen in inside.values())
        return [seen.id for seen in items if seen.entry.ttl and not self._is_live(seen, now)]

    def _is_live(self, item: ViewItem, now: int) -> bool:
        if item.is_expired or not item.entry.is_expired(now):
            return not item.is_expired
        entry = self._journal.entry(item.id)  # Another process may have refreshed it.
        if entry is not None and entry.seq == item.entry.seq and not entry.is_expired(now):
            item.entry = entry
            return True
        item.is_expired = True
        return False

    def load_values(self, items: Sequence[ViewItem]) -> list[ViewItem]:
        """Load the values of these items.

        Returns:
            The items whose values were erased. They are removed from the view.
        """
        missing = [seen for seen in items if seen.value is None]
        if not missing:
            return []
        if self._cached_bytes > _MAX_CACHE_BYTES:
            self._cached_bytes = 0
            wanted = {id(seen) for seen in items}
            for inside in self._items.values():
                for seen in inside.values():
                    if id(seen) not in wanted:
                        seen.value = seen.term_counts = None
        values = self._journal.values([seen.entry for seen in missing])
        lost = []
        for seen in missing:
            seen.value = values.get(seen.entry.said)
            if seen.value is None:
                lost.append(seen)
                self._change(seen.id, None)
            else:
                self._cached_bytes += size_of(seen.value)
        return lost
