"""Directories as trees of pages: build, patch, look up, walk and compare.

The cost of an operation depends on the pages that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from ortet.errors import Invalid
from ortet.history.records import TreeEntry, TreePageRef
from ortet.history.tree.page import (
    MAX_PAGE_LEVEL,
    SINGLE_PAGE_MAX_ITEMS,
    PageNode,
    PageStore,
    TreeRef,
    ends_page,
    leaf_node,
)
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

__all__ = ["CACHE_BYTES", "TreeRef", "Trees"]

CACHE_BYTES = 32 << 20

Edits = Mapping[bytes, Any]


class Trees:
    """The directories of one store. `patch` always gives the same id as `build` of the result."""

    def __init__(
        self, objects: ObjectStore, cache_bytes: int = CACHE_BYTES, kind: Kind = Kind.TREE
    ) -> None:
        self.objects = objects
        self._pages = PageStore(objects, cache_bytes, kind)

    def clear_cache(self) -> None:
        """Drop cached pages. After a sweep they may no longer be in the store."""
        self._pages.clear()

    def build(self, entries: Iterable[TreeEntry]) -> TreeRef:
        """Store a directory with exactly these entries, in any order. Names must be distinct."""
        node = leaf_node(list(entries))
        if len(set(node.keys)) != len(node.keys):
            raise Invalid(
                "bad_tree", "a directory holds one name twice: give every entry its own name"
            )
        return self._store_levels(node)

    def empty(self) -> TreeRef:
        """Return the directory without entries."""
        return self.build(())

    def patch(self, oid: Oid, changes: Mapping[bytes, TreeEntry | None]) -> TreeRef:
        """Set these entries in a directory. None removes a name, which may be absent."""
        root = self._pages.load(oid)
        edits: Edits = changes
        moved = False
        for level in range(root.level):
            edits, shifted = self._patch_level(root, level, edits)
            moved |= shifted
        same = None if moved else root.with_items_replaced(edits)
        if same is not None:
            return _tree_ref(self._pages.store(same, likely_new=True))
        node = root.copy()
        for key, item in edits.items():
            node.set_item(key, item)
        return self._store_levels(self._lower_root(node) if moved else node)

    def patch_paths(self, root: TreeEntry, changes: Mapping[bytes, TreeEntry | None]) -> TreeEntry:
        """Apply changes by path (b"" is the root itself), and return the new root.

        A changed directory gets the contents that its entry names. With `data` b"" it keeps its
        current contents, or becomes empty if it does not exist yet. Changes below it apply
        afterwards. Missing directories are not created: a path without a parent directory raises
        Invalid("no_parent").
        """
        edits: dict[bytes, dict[bytes, TreeEntry | None]] = {}
        for path, entry in changes.items():
            if path:
                parent, name = _split(path, entry)
                edits.setdefault(parent, {})[name] = entry
        return self._rebuild(self._directories_to_patch(root, changes, edits), edits)

    def _directories_to_patch(
        self,
        root: TreeEntry,
        changes: Mapping[bytes, TreeEntry | None],
        edits: Mapping[bytes, object],
    ) -> dict[bytes, TreeEntry]:
        """Return the directories to patch and all above them, parents first, before the changes."""
        paths = {b""}
        for path, entry in changes.items():
            if path and entry is not None and entry.is_dir and not entry.data:
                paths.add(path)
        paths.update(edits)
        for path in list(paths):
            above = path.rpartition(b"/")[0]
            while above not in paths:
                paths.add(above)
                above = above.rpartition(b"/")[0]
        bases: dict[bytes, TreeEntry] = {}
        for path in sorted(paths, key=_depth):
            bases[path] = self._directory_to_patch(path, root, changes, bases)
        return bases

    def _directory_to_patch(
        self,
        path: bytes,
        root: TreeEntry,
        changes: Mapping[bytes, TreeEntry | None],
        bases: Mapping[bytes, TreeEntry],
    ) -> TreeEntry:
        entry = changes.get(path)
        if entry is None or not entry.data:
            parent, _, name = path.rpartition(b"/")
            now = self.lookup(Oid(bases[parent].data), name) if path else root
            if path not in changes:
                entry = now
            elif entry is not None:
                directory = (
                    TreeRef(Oid(now.data), now.cid)
                    if now is not None and now.is_dir
                    else self.empty()
                )
                entry = _with_tree(entry, directory)
        if entry is None or not entry.is_dir:
            shown = path.decode(errors="backslashreplace") or "the root"
            raise Invalid("no_parent", f"{shown} is not a directory: add it before what it holds")
        return entry

    def _rebuild(
        self, bases: dict[bytes, TreeEntry], edits: dict[bytes, dict[bytes, TreeEntry | None]]
    ) -> TreeEntry:
        """Patch every directory, children first, and set each result in its parent."""
        entry = bases[b""]
        for path in reversed(bases):
            entry = bases[path]
            changed = edits.get(path)
            if changed:
                entry = _with_tree(entry, self.patch(Oid(entry.data), changed))
            if path:
                parent, _, name = path.rpartition(b"/")
                edits.setdefault(parent, {})[name] = entry
        return entry

    def entries(self, oid: Oid) -> Iterator[TreeEntry]:
        """Yield the entries of a directory, sorted by raw name."""
        return self._leaves(self._pages.load(oid))

    def _leaves(self, node: PageNode) -> Iterator[TreeEntry]:
        if node.level == 0:
            yield from node.items
            return
        for child in self._pages.children(node):
            yield from self._leaves(child)

    def lookup(self, oid: Oid, name: bytes) -> TreeEntry | None:
        """Return the entry with this name, or None."""
        node = self._pages.seek(self._pages.load(oid), 0, name)
        return None if node is None else cast("TreeEntry | None", node.find(name))

    def resolve(self, root: TreeEntry, path: bytes) -> TreeEntry | None:
        """Return the entry at a path below `root` (b"" is root itself).

        Symlinks are not followed.
        """
        entry: TreeEntry | None = root
        for name in path.split(b"/") if path else ():
            if entry is None or not entry.is_dir:
                return None
            entry = self.lookup(Oid(entry.data), name)
        return entry

    def walk(self, root: TreeEntry, prefix: bytes = b"") -> Iterator[tuple[bytes, TreeEntry]]:
        """Yield everything below a directory.

        A directory comes before its entries; names are sorted.
        """
        # A stack instead of recursion: a path may be deeper than the recursion limit.
        stack = [(prefix, self.entries(Oid(root.data)))] if root.is_dir else []
        while stack:
            above, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            path = above + b"/" + entry.name if above else entry.name
            yield path, entry
            if entry.is_dir:
                stack.append((path, self.entries(Oid(entry.data))))

    def difference(self, a: Oid, b: Oid) -> list[tuple[TreeEntry | None, TreeEntry | None]]:
        """Return (old, new) of every name whose entry differs, sorted. Equal pages are not read."""
        if a == b:
            return []
        old, new = self._pages.load(a), self._pages.load(b)
        olds, news = old.items, new.items
        level_a, level_b = old.level, new.level
        while level_a or level_b:
            if level_a == level_b:
                olds, news = _without_common(olds, news)
            down = max(level_a, level_b)
            if level_a == down:
                olds, level_a = self._load_items(olds, down), down - 1
            if level_b == down:
                news, level_b = self._load_items(news, down), down - 1
        return _pair(olds, news)

    def _load_items(self, refs: list[TreePageRef], level: int) -> list[Any]:
        """Return the items of pages that a page of `level` refers to."""
        items: list[Any] = []
        for ref in refs:
            items += self._pages.load(Oid(ref.oid), level - 1).items
        return items

    def _patch_level(
        self, root: PageNode, level: int, edits: Edits
    ) -> tuple[dict[bytes, TreePageRef | None], bool]:
        """Apply edits to one level.

        Return the edits for the next level, and True if keys changed.
        """
        out: dict[bytes, TreePageRef | None] = {}
        end, shifted = root.keys[-1], False
        keys = sorted(edits, reverse=True)
        while keys:
            page = self._pages.seek(root, level, keys[-1]) or self._pages.last_page(root, level)
            last = page.keys[-1]
            here = keys if last == end else [key for key in keys if key <= last]
            same = page.with_items_replaced({key: edits[key] for key in here})
            if same is not None:
                out[same.keys[-1]] = self._pages.store(same, likely_new=True)
                del keys[-len(here) :]
                continue
            run, moved = page.copy(), False
            while True:
                last = page.keys[-1]
                out[last] = None
                while keys and (last == end or keys[-1] <= last):
                    key = keys.pop()
                    moved |= run.set_item(key, edits[key])
                if not moved or last == end or (run.keys and ends_page(run.keys[-1], level)):
                    break
                # The name that ended this page is removed: continue with the next page.
                page = cast("PageNode", self._pages.seek(root, level, last + b"\0"))
                run.append(page)
            for node in run.split() if moved else [run]:
                out[node.keys[-1]] = self._pages.store(node)
            shifted |= moved
        return out, shifted

    def _lower_root(self, node: PageNode) -> PageNode:
        """After removals, return the lowest level that is small enough to be a single root page."""
        while node.level and len(node.items) <= SINGLE_PAGE_MAX_ITEMS:
            if len(node.items) > 1 and self._exceeds(node, SINGLE_PAGE_MAX_ITEMS):
                break
            below = PageNode(node.level - 1, [], [])
            for child in self._pages.children(node):
                below.append(child)
            node = below
        return node

    def _exceeds(self, node: PageNode, count: int) -> bool:
        for child in self._pages.children(node):
            count -= len(child.keys)
            if count < 0:
                return True
        return False

    def _store_levels(self, node: PageNode) -> TreeRef:
        """Store a whole level, and the levels above it, until one page is left."""
        while len(node.items) > SINGLE_PAGE_MAX_ITEMS and node.level < MAX_PAGE_LEVEL:
            pages = node.split()
            if len(pages) == 1:
                break
            refs: list[Any] = [self._pages.store(page) for page in pages]
            node = PageNode(node.level + 1, [ref.last for ref in refs], refs)
        return _tree_ref(self._pages.store(node))


def _tree_ref(root: TreePageRef) -> TreeRef:
    return TreeRef(Oid(root.oid), root.cid)


def _split(path: bytes, entry: TreeEntry | None) -> tuple[bytes, bytes]:
    parent, _, name = path.rpartition(b"/")
    if name in (b"", b".", b"..") or (entry is not None and entry.name != name):
        shown = path.decode(errors="backslashreplace")
        raise Invalid(
            "bad_path", f"{shown!r} does not name the entry given for it: use a plain path"
        )
    return parent, name


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0


def _with_tree(entry: TreeEntry, tree: TreeRef) -> TreeEntry:
    return msgspec.structs.replace(entry, data=tree.oid, cid=tree.cid)


def _without_common(olds: list[Any], news: list[Any]) -> tuple[list[Any], list[Any]]:
    common = {ref.oid for ref in olds} & {ref.oid for ref in news}
    if not common:
        return olds, news
    return [r for r in olds if r.oid not in common], [r for r in news if r.oid not in common]


def _pair(
    olds: list[TreeEntry], news: list[TreeEntry]
) -> list[tuple[TreeEntry | None, TreeEntry | None]]:
    before = {entry.name: entry for entry in olds}
    after = {entry.name: entry for entry in news}
    names = sorted(before.keys() | after.keys())
    pairs = ((before.get(name), after.get(name)) for name in names)
    return [(old, new) for old, new in pairs if old != new]


# Maps from keys to small values, stored as tree pages. A change rewrites a page, not the map.

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
