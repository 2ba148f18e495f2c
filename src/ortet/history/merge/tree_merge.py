"""Three-way merge of images.

Conflicts are returned as data. A path with a conflict keeps our version. No file is partly merged.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, pairwise
from typing import Any, Literal, TypeVar

import msgspec

from ortet._util.codec import encode
from ortet.history.merge.text_merge import Favor, TextMerge, is_binary, merge_text
from ortet.history.records import Image, TreeEntry
from ortet.history.references import read_hardlinks
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import put_bytes, read_file

# Three-way merge of one entry: its content, and each metadata field.

ConflictKind = Literal["content", "added", "deleted_by_us", "deleted_by_them", "type", "metadata"]

MergeContent = Callable[[TreeEntry, TreeEntry, TreeEntry], TextMerge | None]
"""Merges the contents of base, ours and theirs as text. Returns None if binary or too large."""

PutContent = Callable[[bytes], bytes]
"""Stores a file's content. Returns its Oid, or b"" if it is empty."""

_MERGED_METADATA_FIELDS = ("mode", "uid", "gid", "xattrs")


class EntryMerge(msgspec.Struct, frozen=True):
    """The result for one path. With a conflict and no `favor`, `entry` is ours unchanged."""

    entry: TreeEntry
    conflict: ConflictKind | None = None


def merge_file(
    base: TreeEntry | None,
    ours: TreeEntry,
    theirs: TreeEntry,
    *,
    merge_content: MergeContent,
    put_content: PutContent,
    favor: Favor | None = None,
) -> EntryMerge:
    """Merge two entries of the same type that differ from each other and from `base`.

    Directories are not allowed.
    """
    if base is not None and not is_same_type(base, ours):
        base = None
    side, conflict = _choose_content_side(base, ours, theirs, favor)
    merged = merge_metadata(base, ours, theirs, favor=favor)
    if conflict is not None and base is not None and ours.is_file:
        done = merge_content(base, ours, theirs)
        if done is not None:
            side = _with_content(ours, put_content(done.data), len(done.data))
            conflict = "content" if done.conflicts else None
    conflict = conflict or merged.conflict
    if conflict is not None and favor is None:
        return EntryMerge(ours, conflict)
    entry = msgspec.structs.replace(
        merged.entry, size=side.size, data=side.data, holes=side.holes, rdev=side.rdev
    )
    return EntryMerge(entry, conflict)


def merge_metadata(
    base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry, *, favor: Favor | None = None
) -> EntryMerge:
    """Return ours with the changes of theirs in mode, owner and xattrs.

    If both sides changed the mtime, the newer one is used.
    """
    values: dict[str, Any] = {}
    conflict = False
    for name in _MERGED_METADATA_FIELDS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        before = None if base is None else getattr(base, name)
        if mine != other and before not in (mine, other):
            conflict = True
            values[name] = other if favor == "theirs" else mine
        else:
            values[name] = other if mine == before else mine
    before = None if base is None else base.mtime
    if before in (ours.mtime, theirs.mtime):
        values["mtime"] = theirs.mtime if ours.mtime == before else ours.mtime
    else:
        values["mtime"] = max(ours.mtime, theirs.mtime)
    if conflict and favor is None:
        return EntryMerge(ours, "metadata")
    return EntryMerge(msgspec.structs.replace(ours, **values), "metadata" if conflict else None)


def only_times_changed(base: TreeEntry, entry: TreeEntry) -> bool:
    """Return True if only times changed. A deletion by the other side may then win."""
    if not is_same_type(base, entry) or any(
        getattr(base, f) != getattr(entry, f) for f in _MERGED_METADATA_FIELDS
    ):
        return False
    return base.content == entry.content and base.rdev == entry.rdev


def is_same_type(a: TreeEntry, b: TreeEntry) -> bool:
    """Return True if both are files, both directories, and so on."""
    return stat.S_IFMT(a.mode) == stat.S_IFMT(b.mode)


def _choose_content_side(
    base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry, favor: Favor | None
) -> tuple[TreeEntry, ConflictKind | None]:
    """Return the side whose content is used, and the conflict if both sides changed it."""
    mine, other = (ours.data, ours.rdev), (theirs.data, theirs.rdev)
    before = None if base is None else (base.data, base.rdev)
    if other in (mine, before):
        return ours, None
    if mine == before:
        return theirs, None
    side = theirs if favor == "theirs" else ours
    return side, "added" if base is None else "content"


def _with_content(entry: TreeEntry, data: bytes, size: int) -> TreeEntry:
    return msgspec.structs.replace(entry, data=data, size=size, holes=b"")


# Three-way merge of hardlink groups.
#
# Names are one file if a side linked them, or if both sides left them linked.

LinkGroup = frozenset[bytes]
Pair = tuple[bytes, bytes]


class _HardlinkSide:
    """The hardlink groups of one image."""

    def __init__(self, trees: Trees, image: Image | None) -> None:
        self._trees = trees
        self._root = None if image is None else image.root
        links = b"" if image is None else image.links
        self.groups = {frozenset(group) for group in read_hardlinks(trees.objects, links)}
        self._group_by_path = {path: group for group in self.groups for path in group}

    def is_linked(self, pair: Pair) -> bool | None:
        """Return True if both names are one file. None if the image does not have both names."""
        group = self._group_by_path.get(pair[0])
        if group is not None and pair[1] in group:
            return True
        return False if self.entry(pair[0]) and self.entry(pair[1]) else None

    def entry(self, path: bytes) -> TreeEntry | None:
        return None if self._root is None else self._trees.resolve(self._root, path)


def merge_links(
    trees: Trees, base: Image | None, ours: Image, theirs: Image, root: TreeEntry
) -> tuple[TreeEntry, bytes]:
    """Return the merged `root`, made consistent with the groups, and the Oid of the groups.

    The groups contain only names that exist. If one side linked a name to a file and the other side
    changed that file, the name gets the changed content.
    """
    sides = [_HardlinkSide(trees, image) for image in (base, ours, theirs)]
    if not any(side.groups for side in sides):
        return root, b""
    pairs = sorted(_linked_pairs(*sides))
    links: dict[bytes, TreeEntry] = {}
    for path in {path for pair in pairs for path in pair}:
        entry = trees.resolve(root, path)
        if entry is not None and not entry.is_dir:
            links[path] = msgspec.structs.replace(entry, name=b"")
    pairs = [pair for pair in pairs if pair[0] in links and pair[1] in links]
    changes = _propagate_linked_changes(pairs, links, sides[0])
    if changes:
        root = trees.patch_paths(root, changes)
    groups = _connected_groups(pairs, links)
    oid = trees.objects.put(Kind.META, encode(groups)) if groups else b""
    return root, oid


def _linked_pairs(
    base: _HardlinkSide, ours: _HardlinkSide, theirs: _HardlinkSide
) -> Iterator[Pair]:
    for group in base.groups | ours.groups | theirs.groups:
        names = sorted(group)
        if group in ours.groups and group in theirs.groups:
            yield from pairwise(names)
            continue
        for pair in combinations(names, 2):
            before, mine, other = base.is_linked(pair), ours.is_linked(pair), theirs.is_linked(pair)
            if mine is None or (mine == before and other is not None):
                mine = other
            if mine:
                yield pair


def _propagate_linked_changes(
    pairs: list[Pair], entries: dict[bytes, TreeEntry], base: _HardlinkSide
) -> dict[bytes, TreeEntry | None]:
    """Give unchanged names the value of a linked name that changed. Also updates `entries`."""
    changes: dict[bytes, TreeEntry | None] = {}
    old = {value for path in entries if (value := base.entry(path)) is not None}
    olds = {msgspec.structs.replace(entry, name=b"") for entry in old}
    # Two passes: a chain of pairs may list a name before the name that it follows.
    for pair in pairs + pairs[::-1]:
        for path, other in (pair, pair[::-1]):
            if (
                entries[path] != entries[other]
                and entries[path] in olds
                and entries[other] not in olds
            ):
                entries[path] = entries[other]
                changes[path] = msgspec.structs.replace(
                    entries[other], name=path.rpartition(b"/")[2]
                )
    return changes


def _connected_groups(pairs: list[Pair], entries: Mapping[bytes, TreeEntry]) -> list[list[bytes]]:
    """Return groups of connected names with equal entries. Each group and the list are sorted."""
    group_of: dict[bytes, list[bytes]] = {}
    for a, b in pairs:
        if entries[a] != entries[b]:
            continue
        left, right = group_of.setdefault(a, [a]), group_of.setdefault(b, [b])
        if left is not right:
            left += right
            for path in right:
                group_of[path] = left
    distinct = {id(group): group for group in group_of.values()}
    return sorted(sorted(group) for group in distinct.values())


T = TypeVar("T")

MAX_MERGE_TEXT_BYTES = 4 << 20
"""Larger files are not merged line by line."""


class FileConflict(msgspec.Struct, frozen=True):
    """One path that both sides changed.

    `base`, `ours` and `theirs` are the ids (hex) of each side's content, or None if the side has no
    such path. `settled` is True if `favor` chose a side.
    """

    path: str
    kind: ConflictKind
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None
    settled: bool = False


class MergedImage(msgspec.Struct, frozen=True):
    """The merged image and its conflicts."""

    image: Image
    conflicts: list[FileConflict]


def merge_images(
    trees: Trees,
    objects: ObjectStore,
    *,
    base: Image | None,
    ours: Image,
    theirs: Image,
    favor: Favor | None = None,
) -> MergedImage:
    """Merge the files, hardlinks, environment and cwd of two images.

    If both sides changed a variable or the cwd, ours is used. System, services and processes are
    ours, because they belong to the machine that continues. `favor` resolves conflicts, inside text
    files line by line.
    """
    run = _TreeMerger(trees, objects, favor)
    root = run.merge_roots(base.root if base else None, ours.root, theirs.root)
    root, links = merge_links(trees, base, ours, theirs, root)
    image = msgspec.structs.replace(
        ours,
        root=root,
        links=links,
        env=_merge_env(base.env if base else {}, ours.env, theirs.env),
        cwd=_three_way(base.cwd if base else "", ours.cwd, theirs.cwd),
    )
    return MergedImage(
        image, sorted(run.conflicts, key=lambda conflict: os.fsencode(conflict.path))
    )


class _TreeMerger:
    """The state of one merge: changes to ours, and conflicts."""

    def __init__(self, trees: Trees, objects: ObjectStore, favor: Favor | None) -> None:
        self._trees = trees
        self._objects = objects
        self._favor = favor
        self._todo: list[tuple[bytes, Oid, Oid, Oid]] = []
        self._changes: dict[bytes, TreeEntry | None] = {}
        self.conflicts: list[FileConflict] = []

    def merge_roots(self, base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry) -> TreeEntry:
        self._merge_directories(b"", base, ours, theirs)
        while self._todo:
            above, before, mine, other = self._todo.pop()
            for old, new in self._trees.difference(before, other):
                name = (new or old).name  # type: ignore[union-attr]
                path = above + b"/" + name if above else name
                self._merge_name(path, old, self._trees.lookup(mine, name), new)
        return self._trees.patch_paths(ours, self._changes)

    def _merge_name(
        self, path: bytes, base: TreeEntry | None, ours: TreeEntry | None, theirs: TreeEntry | None
    ) -> None:
        """Merge a name that theirs changed."""
        if ours == theirs:
            return
        if ours == base:
            self._changes[path] = theirs
        elif ours is None or theirs is None:
            self._merge_deletion(path, base, ours, theirs)
        elif not is_same_type(ours, theirs):
            self._resolve_conflict(path, "type", base, ours, theirs)
        elif ours.is_dir:
            self._merge_directories(path, base, ours, theirs)
        else:
            self._merge_files(path, base, ours, theirs)

    def _merge_directories(
        self, path: bytes, base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry
    ) -> None:
        if base is not None and not base.is_dir:
            base = None
        verdict = merge_metadata(base, ours, theirs, favor=self._favor)
        if verdict.conflict:
            self._record_conflict(path, verdict.conflict, base, ours, theirs)
        entry = verdict.entry
        before = Oid(base.data) if base else self._trees.empty().oid
        if ours.data == before and theirs.data != before:
            entry = msgspec.structs.replace(entry, data=theirs.data, cid=theirs.cid)
        elif theirs.data not in (before, ours.data):
            self._todo.append((path, before, Oid(ours.data), Oid(theirs.data)))
        if entry != ours:
            self._changes[path] = entry

    def _merge_files(
        self, path: bytes, base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry
    ) -> None:
        verdict = merge_file(
            base, ours, theirs, merge_content=self._text, put_content=self._put, favor=self._favor
        )
        if verdict.conflict:
            self._record_conflict(path, verdict.conflict, base, ours, theirs)
        if verdict.entry != ours:
            self._changes[path] = verdict.entry

    def _merge_deletion(
        self, path: bytes, base: TreeEntry | None, ours: TreeEntry | None, theirs: TreeEntry | None
    ) -> None:
        """Merge a name that one side deleted and the other changed."""
        remaining = ours or theirs
        if base is not None and remaining is not None and only_times_changed(base, remaining):
            if ours is not None:
                self._changes[path] = None
            return
        kind: ConflictKind = "deleted_by_us" if ours is None else "deleted_by_them"
        self._resolve_conflict(path, kind, base, ours, theirs)

    def _resolve_conflict(
        self,
        path: bytes,
        kind: ConflictKind,
        base: TreeEntry | None,
        ours: TreeEntry | None,
        theirs: TreeEntry | None,
    ) -> None:
        """Keep ours as a whole, or use theirs as a whole."""
        self._record_conflict(path, kind, base, ours, theirs)
        if self._favor == "theirs":
            self._changes[path] = theirs

    def _record_conflict(self, path: bytes, kind: ConflictKind, *sides: TreeEntry | None) -> None:
        base, ours, theirs = (_content_id(entry) for entry in sides)
        settled = self._favor is not None
        shown = os.fsdecode(path) or "."
        self.conflicts.append(FileConflict(shown, kind, base, ours, theirs, settled))

    def _text(self, base: TreeEntry, ours: TreeEntry, theirs: TreeEntry) -> TextMerge | None:
        if any(entry.size > MAX_MERGE_TEXT_BYTES for entry in (base, ours, theirs)):
            return None
        texts = [b"".join(read_file(self._objects, entry)) for entry in (base, ours, theirs)]
        if any(is_binary(text) for text in texts):
            return None
        return merge_text(*texts, favor=self._favor or "ours")

    def _put(self, data: bytes) -> bytes:
        return put_bytes(self._objects, data)


def _content_id(entry: TreeEntry | None) -> str | None:
    if entry is None:
        return None
    return entry.data.hex() if entry.is_file or entry.is_dir else ""


def _three_way(base: T, ours: T, theirs: T) -> T:
    return theirs if ours == base else ours


def _merge_env(
    base: Mapping[str, str | None],
    ours: Mapping[str, str | None],
    theirs: Mapping[str, str | None],
) -> dict[str, str | None]:
    """Merge variable by variable. A variable without an entry is as it was at open."""
    absent = object()
    merged: dict[str, str | None] = {}
    for name in sorted(base.keys() | ours.keys() | theirs.keys()):
        sides = [side.get(name, absent) for side in (base, ours, theirs)]
        value = _three_way(*sides)
        if value is None or isinstance(value, str):
            merged[name] = value
    return merged
