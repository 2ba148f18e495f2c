"""A page in memory. Once packed it is bytes with known joints: putting one entry in the place of
another touches that entry alone, and not the memory of all the others."""

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
"""The highest level: a 32-bit hash has no more bits to cut by, so a page there is never cut."""

_BITS = 5
_MASK = (1 << _BITS) - 1


class PackedPage(NamedTuple):
    """Canonical bytes of a page and of what its content-only id is made of.

    `starts` and `row_starts` say where each item begins in them, and the last where it ends.
    """

    data: bytes
    starts: list[int]
    rows: bytes
    row_starts: list[int]


class PageNode:
    """A page: `items` are Entries at level 0, PageRefs above, and `keys` their names.

    Nodes share lists: those that were stored or loaded are never changed, see `copy`.
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
        """One of the items."""
        if self._items is not None:
            return self._items[at]
        packed = self.packed()
        data = packed.data[packed.starts[at] : packed.starts[at + 1]]
        return decode(TreePageRef if self.level else TreeEntry, data)

    def find(self, key: bytes) -> Any:
        """The item of this key, or None."""
        at = bisect_left(self.keys, key)
        return self.item(at) if at < len(self.keys) and self.keys[at] == key else None

    def packed(self) -> PackedPage:
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
        """With other items for some of its keys; None when that would add or take away a key."""
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
        """The same for one key, the usual case: a change goes up through many pages of which it
        touches one item each."""
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
        """One that may be changed."""
        return PageNode(self.level, self.keys.copy(), self.items.copy())

    def set_item(self, key: bytes, item: Any) -> bool:
        """Put an item in its place, or take it out (None); True when the keys changed."""
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
        """Take over the items of the page that follows."""
        self.keys += other.keys
        self.items.extend(other.items)

    def split(self) -> list[PageNode]:
        """Into pages, at the names whose hash says so; none for an empty run."""
        if self.level == MAX_PAGE_LEVEL:
            return [self] if self.keys else []
        pages, start, end = [], 0, len(self.keys)
        for index, key in enumerate(self.keys, 1):
            if index == end or ends_page(key, self.level):
                pages.append(PageNode(self.level, self.keys[start:index], self.items[start:index]))
                start = index
        return pages


def leaf_node(entries: Sequence[TreeEntry]) -> PageNode:
    """One run of entries, sorted by name."""
    items = sorted(entries, key=lambda entry: entry.name)
    return PageNode(0, [entry.name for entry in items], items)


def ends_page(key: bytes, level: int) -> bool:
    """Whether a page of this level is cut after this name."""
    return not crc32(key) >> _BITS * level & _MASK


def content_row(entry: TreeEntry) -> tuple[bytes, int, bytes]:
    """(name, *entry.content), without the cost of the property: a directory has many."""
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
    """What stands before and behind the items in the bytes of a Page."""
    empty = encode(TreePage(level))  # ends with two lists that have nothing in them
    head, lists = empty[:-2], empty[-2:]
    if level:
        return head + lists[:1] + array_header(count), b""
    return head + array_header(count), lists[1:]


def _splice(
    data: bytes, starts: list[int], pieces: Sequence[tuple[int, bytes]]
) -> tuple[bytes, list[int]]:
    """Other bytes in some places, which come in order; and where each begins then."""
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
