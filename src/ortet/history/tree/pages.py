"""Splits a directory into pages, and loads, stores and caches them.

A directory of up to SINGLE_PAGE_MAX_ITEMS entries is one page. A larger one is split after every
name whose hash ends a page (one in 32). The references to those pages are split by the next five
bits of the same hash, until few enough are left. The split depends only on the names. Equal entries
therefore always give equal pages, in any order of changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

import msgspec

from ortet._util.codec import decode
from ortet.errors import Corrupt
from ortet.history.records import TreePage, TreePageRef
from ortet.history.tree.page import MAX_PAGE_LEVEL, PageNode
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

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
            at = bisect_left(node.keys, key)
            if at == len(node.keys):
                return None
            node = self.load(Oid(node.item(at).oid), node.level - 1)
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
