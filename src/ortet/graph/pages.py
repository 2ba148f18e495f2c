"""Pages: how one directory becomes objects. Where it is cut depends on its names alone.

Up to SMALL entries are one page. More are cut after every name whose hash says so (one in 32), and
the references to those pages by the next five bits of the same hash, until SMALL or fewer are left.
So the same entries always give the same pages, whatever the order in which they came to be.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any
from zlib import crc32

import msgspec

from ortet.codec import decode, encode
from ortet.errors import Corrupt
from ortet.graph.records import Entry, Page, PageRef
from ortet.ids import Oid
from ortet.store.abc import Kind, Objects

SMALL = 48
TOP = 6
"""The highest level: a 32-bit hash has no more bits to cut by, so a page there is never cut."""

_BITS = 5
_MASK = (1 << _BITS) - 1
_DECODED = 6
"""Bytes of memory that one stored byte of a page takes when decoded, measured."""


class TreeRef(msgspec.Struct, frozen=True):
    """A stored directory: its id, and the id of its content alone (no times, owners, xattrs)."""

    oid: Oid
    cid: bytes


class Node:
    """A page in memory: `items` are Entries at level 0, PageRefs above, and `keys` their names."""

    __slots__ = ("contents", "items", "keys", "level")

    def __init__(
        self,
        level: int,
        keys: list[bytes],
        items: list[Any],
        contents: list[Any] | None = None,
    ) -> None:
        self.level = level
        self.keys = keys
        self.items = items
        self.contents = contents

    def copy(self) -> Node:
        return Node(self.level, self.keys.copy(), self.items.copy(), self.content_rows().copy())

    def content_rows(self) -> list[Any]:
        """What the content-only id is made of, kept because a patch changes one row of many."""
        if self.contents is None:
            row = content_row if self.level == 0 else _ref_row
            self.contents = [row(item) for item in self.items]
        return self.contents

    def set(self, key: bytes, item: Any) -> bool:
        """Put an item in its place, or take it out (None); True when the keys changed."""
        keys, contents = self.keys, self.content_rows()
        at = bisect_left(keys, key)
        found = at < len(keys) and keys[at] == key
        if item is None:
            if found:
                del keys[at], self.items[at], contents[at]
            return found
        row = content_row(item) if self.level == 0 else _ref_row(item)
        if found:
            self.items[at] = item
            contents[at] = row
            return False
        keys.insert(at, key)
        self.items.insert(at, item)
        contents.insert(at, row)
        return True

    def find(self, key: bytes) -> Any:
        """The item of this key, or None."""
        at = bisect_left(self.keys, key)
        return self.items[at] if at < len(self.keys) and self.keys[at] == key else None

    def append(self, other: Node) -> None:
        """Take over the items of the page that follows."""
        self.content_rows().extend(other.content_rows())
        self.keys += other.keys
        self.items += other.items

    def cut(self) -> list[Node]:
        """Into pages, at the names whose hash says so; none for an empty run."""
        if self.level == TOP:
            return [self] if self.keys else []
        pages, start, end = [], 0, len(self.keys)
        for index, key in enumerate(self.keys, 1):
            if index == end or ends_page(key, self.level):
                pages.append(self._slice(start, index))
                start = index
        return pages

    def _slice(self, start: int, end: int) -> Node:
        rows = self.content_rows()[start:end]
        return Node(self.level, self.keys[start:end], self.items[start:end], rows)


def ends_page(key: bytes, level: int) -> bool:
    """Whether a page of this level is cut after this name."""
    return not crc32(key) >> _BITS * level & _MASK


def content_row(entry: Entry) -> tuple[bytes, int, bytes]:
    """(name, *entry.content), without the cost of the property: a directory has many."""
    mode = entry.mode
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return entry.name, kind, entry.cid
    if kind == stat.S_IFREG:
        return entry.name, kind | mode & 0o100, entry.data
    return entry.name, kind, entry.data


def _ref_row(ref: PageRef) -> tuple[bytes, bytes]:
    return ref.last, ref.cid


class Pages:
    """Loads and stores pages, and keeps the decoded ones that were used last."""

    def __init__(self, objects: Objects, cache_bytes: int) -> None:
        self._objects = objects
        self._limit = cache_bytes
        self._held = 0
        self._cache: OrderedDict[Oid, tuple[Node, int]] = OrderedDict()
        self._lock = Lock()

    def load(self, oid: Oid, level: int | None = None) -> Node:
        """The page of this id; at `level`, when its parent says which. Do not change it: copy."""
        with self._lock:
            hit = self._cache.get(oid)
            if hit is not None:
                self._cache.move_to_end(oid)
        if hit is None:
            data = self._objects.get(oid)
            node = _decode(data)
            self._keep(oid, node, len(data))
        else:
            node = hit[0]
        if level is not None and node.level != level:
            raise Corrupt(
                "bad_tree",
                f"page {oid.hex()} is of level {node.level}, its parent says {level}: "
                "run `ortet verify`",
            )
        return node

    def store(self, node: Node) -> PageRef:
        """Put the page; the node belongs to the cache from here on."""
        items = node.items
        page = Page(0, items) if node.level == 0 else Page(node.level, [], items)
        data = encode(page)
        oid = self._objects.put(Kind.TREE, data)
        cid = self._objects.hasher.oid(encode(node.content_rows()))
        self._keep(oid, node, len(data))
        return PageRef(node.keys[-1] if node.keys else b"", oid, cid)

    def children(self, node: Node) -> Iterator[Node]:
        for ref in node.items:
            yield self.load(Oid(ref.oid), node.level - 1)

    def seek(self, root: Node, level: int, key: bytes) -> Node | None:
        """The first page of `level` that ends at `key` or after it, None when all end before."""
        node = root
        while node.level > level:
            at = bisect_left(node.keys, key)
            if at == len(node.keys):
                return None
            node = self.load(Oid(node.items[at].oid), node.level - 1)
        return node

    def final(self, root: Node, level: int) -> Node:
        """The last page of `level`."""
        node = root
        while node.level > level:
            node = self.load(Oid(node.items[-1].oid), node.level - 1)
        return node

    def clear(self) -> None:
        with self._lock:
            self._cache.clear()
            self._held = 0

    def _keep(self, oid: Oid, node: Node, size: int) -> None:
        cost = size * _DECODED
        with self._lock:
            if oid in self._cache:
                return
            self._cache[oid] = (node, cost)
            self._held += cost
            while self._held > self._limit and len(self._cache) > 1:
                self._held -= self._cache.popitem(last=False)[1][1]


def _decode(data: bytes) -> Node:
    page = decode(Page, data)
    if page.level == 0:
        return Node(0, [entry.name for entry in page.entries], page.entries)
    if not 0 < page.level <= TOP or not page.pages:
        raise Corrupt("bad_tree", f"a page of level {page.level} without pages: run `ortet verify`")
    return Node(page.level, [ref.last for ref in page.pages], page.pages)


def leaf(entries: Sequence[Entry]) -> Node:
    """One run of entries, sorted by name."""
    items = sorted(entries, key=lambda entry: entry.name)
    return Node(0, [entry.name for entry in items], items)
