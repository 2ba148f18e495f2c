"""Three-way merge of images.

Conflicts are returned as data. A path with a conflict keeps our version. No file is partly merged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ortet.history.merge.mergefile import (
    ConflictKind,
    is_same_type,
    merge_file,
    merge_metadata,
    only_times_changed,
)
from ortet.history.merge.mergelinks import merge_links
from ortet.history.merge.text_merge import Favor, TextMerge, is_binary, merge_text
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import put_bytes, read_file

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
        kept = ours or theirs
        if base is not None and kept is not None and only_times_changed(base, kept):
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
