"""One page in memory, as packed bytes with known item offsets.

Replacing an item copies bytes and encodes only that item. The other items are not decoded.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from zlib import crc32

from ortet._util.codec import array_header, decode, encode
from ortet.history.records import TreeEntry, TreePage, TreePageRef

MAX_PAGE_LEVEL = 6
"""The highest level. The 32-bit hash has no bits left there, so a page is never split."""

_BITS = 5
_MASK = (1 << _BITS) - 1


class PackedPage(NamedTuple):
    """The canonical bytes of a page, and the bytes that its content-only id is the hash of.

    `starts` and `row_starts` are the offset of each item, followed by the end offset.
    """

    data: bytes
    starts: list[int]
    rows: bytes
    row_starts: list[int]


class PageNode:
    """A page. `items` are TreeEntries at level 0 and TreePageRefs above; `keys` are their names.

    Nodes share lists. A stored or loaded node is never changed: see `copy`.
    """

    __slots__ = ("_items", "_packed", "keys", "level")

    def __init__(
        self,
        level: int,
        keys: list[bytes],
        items: list[Any] | None,
        packed: PackedPage | None = None,
    ) -> None:
        self.level = level
        self.keys = keys
        self._items = items
        self._packed = packed

    @property
    def items(self) -> list[Any]:
        if self._items is None:
            page = decode(TreePage, self.packed().data)
            self._items = page.pages if self.level else page.entries
        return self._items

    def item(self, at: int) -> Any:
        """Return one item."""
        if self._items is not None:
            return self._items[at]
        packed = self.packed()
        data = packed.data[packed.starts[at] : packed.starts[at + 1]]
        return decode(TreePageRef if self.level else TreeEntry, data)

    def find(self, key: bytes) -> Any:
        """Return the item of this key, or None."""
        at = bisect_left(self.keys, key)
        return self.item(at) if at < len(self.keys) and self.keys[at] == key else None

    def packed(self) -> PackedPage:
        """Return the page as bytes."""
        if self._packed is None:
            items, row = self._items or [], _row_function(self.level)
            parts, rows = [encode(item) for item in items], [encode(row(item)) for item in items]
            head, end = _page_envelope(self.level, len(items))
            first = array_header(len(items))
            self._packed = PackedPage(
                b"".join((head, *parts, end)),
                list(accumulate(map(len, parts), initial=len(head))),
                b"".join((first, *rows)),
                list(accumulate(map(len, rows), initial=len(first))),
            )
        return self._packed

    def with_items_replaced(self, changes: Mapping[bytes, Any]) -> PageNode | None:
        """Return the page with other items for some keys.

        None if that would add or remove a key.
        """
        if len(changes) == 1:
            return self._with_item_replaced(*next(iter(changes.items())))
        keys, row = self.keys, _row_function(self.level)
        places: list[tuple[int, bytes]] = []
        rows: list[tuple[int, bytes]] = []
        for key in sorted(changes):
            item = changes[key]
            at = bisect_left(keys, key)
            if item is None or at == len(keys) or keys[at] != key:
                return None
            places.append((at, encode(item)))
            rows.append((at, encode(row(item))))
        old = self.packed()
        data, starts = _splice(old.data, old.starts, places)
        content, row_starts = _splice(old.rows, old.row_starts, rows)
        return PageNode(self.level, keys, None, PackedPage(data, starts, content, row_starts))

    def _with_item_replaced(self, key: bytes, item: Any) -> PageNode | None:
        """Replace the item of one key.

        This is the usual case: a change goes up through many pages and touches one item in each.
        """
        keys = self.keys
        at = bisect_left(keys, key)
        if item is None or at == len(keys) or keys[at] != key:
            return None
        data, starts, rows, row_starts = self.packed()
        piece, row = encode(item), encode(_row_function(self.level)(item))
        begin, end, top, low = starts[at], starts[at + 1], row_starts[at], row_starts[at + 1]
        if len(piece) == end - begin and len(row) == low - top:
            packed = PackedPage(
                b"".join((data[:begin], piece, data[end:])),
                starts,
                b"".join((rows[:top], row, rows[low:])),
                row_starts,
            )
            return PageNode(self.level, keys, None, packed)
        places, content = [(at, piece)], [(at, row)]
        packed = PackedPage(*_splice(data, starts, places), *_splice(rows, row_starts, content))
        return PageNode(self.level, keys, None, packed)

    def copy(self) -> PageNode:
        """Return a copy that may be changed."""
        return PageNode(self.level, self.keys.copy(), self.items.copy())

    def set_item(self, key: bytes, item: Any) -> bool:
        """Set an item, or remove it (None). Return True if the keys changed."""
        keys, items = self.keys, self.items
        at = bisect_left(keys, key)
        found = at < len(keys) and keys[at] == key
        if item is None:
            if found:
                del keys[at], items[at]
            return found
        if found:
            items[at] = item
            return False
        keys.insert(at, key)
        items.insert(at, item)
        return True

    def append(self, other: PageNode) -> None:
        """Append the items of the next page."""
        self.keys += other.keys
        self.items.extend(other.items)

    def split(self) -> list[PageNode]:
        """Split the page after each name whose hash ends a page. An empty page gives no pages."""
        if self.level == MAX_PAGE_LEVEL:
            return [self] if self.keys else []
        pages, start, end = [], 0, len(self.keys)
        for index, key in enumerate(self.keys, 1):
            if index == end or ends_page(key, self.level):
                pages.append(PageNode(self.level, self.keys[start:index], self.items[start:index]))
                start = index
        return pages


def leaf_node(entries: Sequence[TreeEntry]) -> PageNode:
    """Return a level 0 page of entries, sorted by name."""
    items = sorted(entries, key=lambda entry: entry.name)
    return PageNode(0, [entry.name for entry in items], items)


def ends_page(key: bytes, level: int) -> bool:
    """Return True if a page of this level is split after this name."""
    return not crc32(key) >> _BITS * level & _MASK


def content_row(entry: TreeEntry) -> tuple[bytes, int, bytes]:
    """Return (name, *entry.content). Faster than the property, for large directories."""
    mode = entry.mode
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return entry.name, kind, entry.cid
    if kind == stat.S_IFREG:
        return entry.name, kind | mode & 0o100, entry.data
    return entry.name, kind, entry.data


def _ref_row(ref: TreePageRef) -> tuple[bytes, bytes]:
    return ref.last, ref.cid


def _row_function(level: int) -> Any:
    return _ref_row if level else content_row


def _page_envelope(level: int, count: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the items of a TreePage."""
    empty = encode(TreePage(level))  # ends with two empty lists
    head, lists = empty[:-2], empty[-2:]
    if level:
        return head + lists[:1] + array_header(count), b""
    return head + array_header(count), lists[1:]


def _splice(
    data: bytes, starts: list[int], pieces: Sequence[tuple[int, bytes]]
) -> tuple[bytes, list[int]]:
    """Replace the bytes of some items, given in order. Return the bytes and the new offsets."""
    out: list[bytes] = []
    done, same = 0, True
    for at, piece in pieces:
        start, end = starts[at], starts[at + 1]
        out += (data[done:start], piece)
        done = end
        same = same and len(piece) == end - start
    out.append(data[done:])
    if same:
        return b"".join(out), starts
    sizes = [end - start for start, end in pairwise(starts)]
    for at, piece in pieces:
        sizes[at] = len(piece)
    return b"".join(out), list(accumulate(sizes, initial=starts[0]))
