"""Directories as trees of pages: build, patch, look up, walk, compare; O(what is touched)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from ortet.errors import Invalid
from ortet.history.records import Entry, PageRef
from ortet.history.tree.page import TOP, Node, ends_page, leaf
from ortet.history.tree.pages import SMALL, Pages, TreeRef
from ortet.ids import Oid
from ortet.objects.base import Kind, Objects

__all__ = ["CACHE_BYTES", "TreeRef", "Trees"]

CACHE_BYTES = 32 << 20

Edits = Mapping[bytes, Any]


class Trees:
    """The directories of one store. `patch` equals `build` of the resulting entries, always."""

    def __init__(
        self, objects: Objects, cache_bytes: int = CACHE_BYTES, kind: Kind = Kind.TREE
    ) -> None:
        self.objects = objects
        self._pages = Pages(objects, cache_bytes, kind)

    def forget(self) -> None:
        """Drop cached pages: after a sweep, what is remembered may be gone from the store."""
        self._pages.clear()

    def build(self, entries: Iterable[Entry]) -> TreeRef:
        """Store a directory with exactly these entries, in any order; names must differ."""
        node = leaf(list(entries))
        if len(set(node.keys)) != len(node.keys):
            raise Invalid(
                "bad_tree", "a directory holds one name twice: give every entry its own name"
            )
        return self._raise(node)

    def empty(self) -> TreeRef:
        """The directory without entries."""
        return self.build(())

    def patch(self, oid: Oid, changes: Mapping[bytes, Entry | None]) -> TreeRef:
        """Put these entries into the directory; None takes a name out, and it may be absent."""
        root = self._pages.load(oid)
        edits: Edits = changes
        moved = False
        for level in range(root.level):
            edits, shifted = self._patch_level(root, level, edits)
            moved |= shifted
        same = None if moved else root.replaced(edits)
        if same is not None:
            return _tree_ref(self._pages.store(same, patched=True))
        node = root.copy()
        for key, item in edits.items():
            node.set(key, item)
        return self._raise(self._sink(node) if moved else node)

    def patch_paths(self, root: Entry, changes: Mapping[bytes, Entry | None]) -> Entry:
        """Apply changes by path (b"" is the root itself), and return the new root.

        A changed directory has the contents its Entry names; with `data` b"" it keeps what is there
        now (nothing, when there is no directory yet). Changes below it apply on top. Nothing comes
        to be that is not named: Invalid("no_parent") for a path whose directory is not there.
        """
        edits: dict[bytes, dict[bytes, Entry | None]] = {}
        for path, entry in changes.items():
            if path:
                parent, name = _split(path, entry)
                edits.setdefault(parent, {})[name] = entry
        return self._rebuild(self._bases(root, changes, edits), edits)

    def _bases(
        self,
        root: Entry,
        changes: Mapping[bytes, Entry | None],
        edits: Mapping[bytes, object],
    ) -> dict[bytes, Entry]:
        """The directories to patch and all above them, parents first, as they are before it."""
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
        bases: dict[bytes, Entry] = {}
        for path in sorted(paths, key=_depth):
            bases[path] = self._base(path, root, changes, bases)
        return bases

    def _base(
        self,
        path: bytes,
        root: Entry,
        changes: Mapping[bytes, Entry | None],
        bases: Mapping[bytes, Entry],
    ) -> Entry:
        entry = changes.get(path)
        if entry is None or not entry.data:
            parent, _, name = path.rpartition(b"/")
            now = self.lookup(Oid(bases[parent].data), name) if path else root
            if path not in changes:
                entry = now
            elif entry is not None:
                kept = (
                    TreeRef(Oid(now.data), now.cid)
                    if now is not None and now.is_dir
                    else self.empty()
                )
                entry = _with(entry, kept)
        if entry is None or not entry.is_dir:
            shown = path.decode(errors="backslashreplace") or "the root"
            raise Invalid("no_parent", f"{shown} is not a directory: add it before what it holds")
        return entry

    def _rebuild(
        self, bases: dict[bytes, Entry], edits: dict[bytes, dict[bytes, Entry | None]]
    ) -> Entry:
        """Patch every directory, children first, and hand each to its parent."""
        entry = bases[b""]
        for path in reversed(bases):
            entry = bases[path]
            changed = edits.get(path)
            if changed:
                entry = _with(entry, self.patch(Oid(entry.data), changed))
            if path:
                parent, _, name = path.rpartition(b"/")
                edits.setdefault(parent, {})[name] = entry
        return entry

    def entries(self, oid: Oid) -> Iterator[Entry]:
        """In order of raw names."""
        return self._leaves(self._pages.load(oid))

    def _leaves(self, node: Node) -> Iterator[Entry]:
        if node.level == 0:
            yield from node.items
            return
        for child in self._pages.children(node):
            yield from self._leaves(child)

    def lookup(self, oid: Oid, name: bytes) -> Entry | None:
        node = self._pages.seek(self._pages.load(oid), 0, name)
        return None if node is None else cast("Entry | None", node.find(name))

    def resolve(self, root: Entry, path: bytes) -> Entry | None:
        """What is at a path below `root` (b"" is root itself); symlinks are not followed."""
        entry: Entry | None = root
        for name in path.split(b"/") if path else ():
            if entry is None or not entry.is_dir:
                return None
            entry = self.lookup(Oid(entry.data), name)
        return entry

    def walk(self, root: Entry, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """Everything below a directory, each directory before what it holds, names in raw order."""
        # an explicit stack: a path may be deeper than Python's recursion limit
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

    def difference(self, a: Oid, b: Oid) -> list[tuple[Entry | None, Entry | None]]:
        """(old, new) of every name whose Entry differs, in order; equal pages are not read."""
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
                olds, level_a = self._open(olds, down), down - 1
            if level_b == down:
                news, level_b = self._open(news, down), down - 1
        return _pair(olds, news)

    def _open(self, refs: list[PageRef], level: int) -> list[Any]:
        """The items of these pages, which a page of `level` refers to."""
        found: list[Any] = []
        for ref in refs:
            found += self._pages.load(Oid(ref.oid), level - 1).items
        return found

    def _patch_level(
        self, root: Node, level: int, edits: Edits
    ) -> tuple[dict[bytes, PageRef | None], bool]:
        """Apply edits to one level; returns the edits above it, and whether keys came or went."""
        out: dict[bytes, PageRef | None] = {}
        end, shifted = root.keys[-1], False
        keys = sorted(edits, reverse=True)
        while keys:
            page = self._pages.seek(root, level, keys[-1]) or self._pages.final(root, level)
            last = page.keys[-1]
            here = keys if last == end else [key for key in keys if key <= last]
            same = page.replaced({key: edits[key] for key in here})
            if same is not None:
                out[same.keys[-1]] = self._pages.store(same, patched=True)
                del keys[-len(here) :]
                continue
            run, moved = page.copy(), False
            while True:
                last = page.keys[-1]
                out[last] = None
                while keys and (last == end or keys[-1] <= last):
                    key = keys.pop()
                    moved |= run.set(key, edits[key])
                if not moved or last == end or (run.keys and ends_page(run.keys[-1], level)):
                    break
                # the name that ended this page is gone: what follows moves up
                page = cast("Node", self._pages.seek(root, level, last + b"\0"))
                run.append(page)
            for node in run.cut() if moved else [run]:
                out[node.keys[-1]] = self._pages.store(node)
            shifted |= moved
        return out, shifted

    def _sink(self, node: Node) -> Node:
        """After things went away: the whole of the lowest level small enough to be the root."""
        while node.level and len(node.items) <= SMALL:
            if len(node.items) > 1 and self._exceeds(node, SMALL):
                break
            below = Node(node.level - 1, [], [])
            for child in self._pages.children(node):
                below.append(child)
            node = below
        return node

    def _exceeds(self, node: Node, count: int) -> bool:
        for child in self._pages.children(node):
            count -= len(child.keys)
            if count < 0:
                return True
        return False

    def _raise(self, node: Node) -> TreeRef:
        """Store a whole level, and levels above it until one page is left."""
        while len(node.items) > SMALL and node.level < TOP:
            pages = node.cut()
            if len(pages) == 1:
                break
            refs: list[Any] = [self._pages.store(page) for page in pages]
            node = Node(node.level + 1, [ref.last for ref in refs], refs)
        return _tree_ref(self._pages.store(node))


def _tree_ref(root: PageRef) -> TreeRef:
    return TreeRef(Oid(root.oid), root.cid)


def _split(path: bytes, entry: Entry | None) -> tuple[bytes, bytes]:
    parent, _, name = path.rpartition(b"/")
    if name in (b"", b".", b"..") or (entry is not None and entry.name != name):
        shown = path.decode(errors="backslashreplace")
        raise Invalid(
            "bad_path", f"{shown!r} does not name the entry given for it: use a plain path"
        )
    return parent, name


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0


def _with(entry: Entry, tree: TreeRef) -> Entry:
    return msgspec.structs.replace(entry, data=tree.oid, cid=tree.cid)


def _without_common(olds: list[Any], news: list[Any]) -> tuple[list[Any], list[Any]]:
    common = {ref.oid for ref in olds} & {ref.oid for ref in news}
    if not common:
        return olds, news
    return [r for r in olds if r.oid not in common], [r for r in news if r.oid not in common]


def _pair(olds: list[Entry], news: list[Entry]) -> list[tuple[Entry | None, Entry | None]]:
    before = {entry.name: entry for entry in olds}
    after = {entry.name: entry for entry in news}
    names = sorted(before.keys() | after.keys())
    pairs = ((before.get(name), after.get(name)) for name in names)
    return [(old, new) for old, new in pairs if old != new]
