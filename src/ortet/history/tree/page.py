"""One page in memory, as packed bytes with known item offsets.

Replacing an item copies bytes and encodes only that item. The other items are not decoded.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ortet._util.codec import array_header, decode, encode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry, TreePage, TreePageRef
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

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

    def item(self, index: int) -> Any:
        """Return one item."""
        if self._items is not None:
            return self._items[index]
        packed = self.packed()
        data = packed.data[packed.starts[index] : packed.starts[index + 1]]
        return decode(TreePageRef if self.level else TreeEntry, data)

    def find(self, key: bytes) -> Any:
        """Return the item of this key, or None."""
        index = bisect_left(self.keys, key)
        return self.item(index) if index < len(self.keys) and self.keys[index] == key else None

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
            index = bisect_left(keys, key)
            if item is None or index == len(keys) or keys[index] != key:
                return None
            places.append((index, encode(item)))
            rows.append((index, encode(row(item))))
        old = self.packed()
        data, starts = _splice(old.data, old.starts, places)
        content, row_starts = _splice(old.rows, old.row_starts, rows)
        return PageNode(self.level, keys, None, PackedPage(data, starts, content, row_starts))

    def _with_item_replaced(self, key: bytes, item: Any) -> PageNode | None:
        """Replace the item of one key.

        This is the usual case: a change goes up through many pages and touches one item in each.
        """
        keys = self.keys
        index = bisect_left(keys, key)
        if item is None or index == len(keys) or keys[index] != key:
            return None
        data, starts, rows, row_starts = self.packed()
        piece, row = encode(item), encode(_row_function(self.level)(item))
        begin, end, top, low = (
            starts[index],
            starts[index + 1],
            row_starts[index],
            row_starts[index + 1],
        )
        if len(piece) == end - begin and len(row) == low - top:
            packed = PackedPage(
                b"".join((data[:begin], piece, data[end:])),
                starts,
                b"".join((rows[:top], row, rows[low:])),
                row_starts,
            )
            return PageNode(self.level, keys, None, packed)
        places, content = [(index, piece)], [(index, row)]
        packed = PackedPage(*_splice(data, starts, places), *_splice(rows, row_starts, content))
        return PageNode(self.level, keys, None, packed)

    def copy(self) -> PageNode:
        """Return a copy that may be changed."""
        return PageNode(self.level, self.keys.copy(), self.items.copy())

    def set_item(self, key: bytes, item: Any) -> bool:
        """Set an item, or remove it (None). Return True if the keys changed."""
        keys, items = self.keys, self.items
        index = bisect_left(keys, key)
        exists = index < len(keys) and keys[index] == key
        if item is None:
            if exists:
                del keys[index], items[index]
            return exists
        if exists:
            items[index] = item
            return False
        keys.insert(index, key)
        items.insert(index, item)
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


# Splits a directory into pages, and loads, stores and caches them.
#
# A directory of up to SINGLE_PAGE_MAX_ITEMS entries is one page. A larger one is split after every
# name whose hash ends a page (one in 32). The references to those pages are split by the next five
# bits of the same hash, until few enough are left. The split depends only on the names. Equal
# entries
# therefore always give equal pages, in any order of changes.

SINGLE_PAGE_MAX_ITEMS = 48
_DECODED_SIZE_FACTOR = 6
"""The measured memory, in bytes, of one stored byte of a decoded page."""


class TreeRef(msgspec.Struct, frozen=True):
    """A stored directory: its id, and the id of its content (no times, owners, xattrs)."""

    oid: Oid
    cid: bytes


class PageStore:
    """Loads and stores pages, with an LRU cache of decoded pages."""

    def __init__(self, objects: ObjectStore, cache_bytes: int, kind: Kind) -> None:
        self._objects = objects
        self._kind = kind
        self._limit = cache_bytes
        self._cached_bytes = 0
        self._cache: OrderedDict[Oid, tuple[PageNode, int]] = OrderedDict()
        self._lock = Lock()

    def load(self, oid: Oid, level: int | None = None) -> PageNode:
        """Return the page of this id. Do not change it: copy it first.

        `level` is the level that the parent expects. Raises Corrupt if the page has another level.
        """
        with self._lock:
            hit = self._cache.get(oid)
            if hit is not None:
                self._cache.move_to_end(oid)
        if hit is None:
            data = self._objects.get(oid)
            node = _decode(data)
            self._add_to_cache(oid, node, len(data))
        else:
            node = hit[0]
        if level is not None and node.level != level:
            raise Corrupt(
                "bad_tree",
                f"page {oid.hex()} is of level {node.level}, its parent says {level}: "
                "run `ortet verify`",
            )
        return node

    def store(self, node: PageNode, *, likely_new: bool = False) -> TreePageRef:
        """Store a page and return a reference to it.

        The node is cached: do not change it afterwards. `likely_new` skips the search for an
        existing copy.
        """
        packed = node.packed()
        put = self._objects.put_new if likely_new else self._objects.put
        oid = put(self._kind, packed.data)
        cid = self._objects.hasher.oid(packed.rows)
        self._add_to_cache(oid, node, len(packed.data))
        return TreePageRef(node.keys[-1] if node.keys else b"", oid, cid)

    def children(self, node: PageNode) -> Iterator[PageNode]:
        """Yield the pages that a node refers to."""
        for ref in node.items:
            yield self.load(Oid(ref.oid), node.level - 1)

    def seek(self, root: PageNode, level: int, key: bytes) -> PageNode | None:
        """Return the first page of `level` that ends at or after `key`, or None."""
        node = root
        while node.level > level:
            index = bisect_left(node.keys, key)
            if index == len(node.keys):
                return None
            node = self.load(Oid(node.item(index).oid), node.level - 1)
        return node

    def last_page(self, root: PageNode, level: int) -> PageNode:
        """Return the last page of `level`."""
        node = root
        while node.level > level:
            node = self.load(Oid(node.item(len(node.keys) - 1).oid), node.level - 1)
        return node

    def clear(self) -> None:
        """Remove all cached pages."""
        with self._lock:
            self._cache.clear()
            self._cached_bytes = 0

    def _add_to_cache(self, oid: Oid, node: PageNode, size: int) -> None:
        cost = size * _DECODED_SIZE_FACTOR
        with self._lock:
            if oid in self._cache:
                return
            self._cache[oid] = (node, cost)
            self._cached_bytes += cost
            while self._cached_bytes > self._limit and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1][1]


def _decode(data: bytes) -> PageNode:
    page = decode(TreePage, data)
    if page.level == 0:
        return PageNode(0, [entry.name for entry in page.entries], page.entries)
    if not 0 < page.level <= MAX_PAGE_LEVEL or not page.pages:
        raise Corrupt("bad_tree", f"a page of level {page.level} without pages: run `ortet verify`")
    return PageNode(page.level, [ref.last for ref in page.pages], page.pages)
