"""Maps from keys to small values, stored as tree pages. A change rewrites a page, not the map.

It is a module of its own because the journal uses it without any directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

_CACHE_BYTES = 8 << 20


class Maps:
    """The maps of one store. Equal maps have equal ids, in any order of changes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._trees = Trees(objects, _CACHE_BYTES, Kind.MAP)

    def clear_cache(self) -> None:
        """Drop cached pages. After a sweep they may no longer be in the store."""
        self._trees.clear_cache()

    def build(self, items: Mapping[bytes, bytes]) -> Oid:
        """Store a map and return its root."""
        return self._trees.build([_entry(key, value) for key, value in items.items()]).oid

    def patch(self, root: Oid, changes: Mapping[bytes, bytes | None]) -> Oid:
        """Return the root of the map with these values. None removes a key."""
        edits = {key: None if v is None else _entry(key, v) for key, v in changes.items()}
        return self._trees.patch(root, edits).oid

    def get(self, root: Oid, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        entry = self._trees.lookup(root, key)
        return None if entry is None else entry.data

    def items(self, root: Oid) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, sorted by key."""
        return ((entry.name, entry.data) for entry in self._trees.entries(root))

    def difference(self, old: Oid, new: Oid) -> dict[bytes, tuple[bytes | None, bytes | None]]:
        """Return (old, new) of each key whose value differs. Equal pages are not read."""
        return {
            (after or before).name: (  # type: ignore[union-attr]
                None if before is None else before.data,
                None if after is None else after.data,
            )
            for before, after in self._trees.difference(old, new)
        }


def _entry(key: bytes, value: bytes) -> TreeEntry:
    return TreeEntry(key, 0, 0, data=value)
