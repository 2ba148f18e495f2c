"""Three-way merge of images: what both sides did to the files since `base`.

Conflicts are data, and ours stays in place where they are. No file is ever half merged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ortet.history.merge.mergefile import (
    ConflictKind,
    merge_file,
    metadata,
    only_touched,
    same_type,
)
from ortet.history.merge.mergelinks import merge_links
from ortet.history.merge.text_merge import Favor, TextMerge, is_binary, merge_text
from ortet.history.records import Entry, Image
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Objects
from ortet.objects.blobs import put_bytes, read_file

T = TypeVar("T")

MAX_TEXT = 4 << 20
"""Larger files are not merged line by line."""


class FileConflict(msgspec.Struct, frozen=True):
    """One path that both sides changed. Ids (hex) are of each side's content; None: not there.

    `settled` is True where `favor` chose a side.
    """

    path: str
    kind: ConflictKind
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None
    settled: bool = False


class Merged(msgspec.Struct, frozen=True):
    image: Image
    conflicts: list[FileConflict]


def merge_images(
    trees: Trees,
    objects: Objects,
    *,
    base: Image | None,
    ours: Image,
    theirs: Image,
    favor: Favor | None = None,
) -> Merged:
    """Files and hardlinks of both; environment and cwd by the same rule, ours where both changed.

    System, services and processes are ours: they belong to the machine that goes on. `favor`
    settles conflicts, inside text files line by line.
    """
    run = _Merge(trees, objects, favor)
    root = run.roots(base.root if base else None, ours.root, theirs.root)
    root, links = merge_links(trees, base, ours, theirs, root)
    image = msgspec.structs.replace(
        ours,
        root=root,
        links=links,
        env=_merge_env(base.env if base else {}, ours.env, theirs.env),
        cwd=_three(base.cwd if base else "", ours.cwd, theirs.cwd),
    )
    return Merged(image, sorted(run.conflicts, key=lambda conflict: os.fsencode(conflict.path)))


class _Merge:
    """One merge under way: collects changes to ours, and conflicts."""

    def __init__(self, trees: Trees, objects: Objects, favor: Favor | None) -> None:
        self._trees = trees
        self._objects = objects
        self._favor = favor
        self._todo: list[tuple[bytes, Oid, Oid, Oid]] = []
        self._changes: dict[bytes, Entry | None] = {}
        self.conflicts: list[FileConflict] = []

    def roots(self, base: Entry | None, ours: Entry, theirs: Entry) -> Entry:
        self._dirs(b"", base, ours, theirs)
        while self._todo:
            above, before, mine, other = self._todo.pop()
            for old, new in self._trees.difference(before, other):
                name = (new or old).name  # type: ignore[union-attr]
                path = above + b"/" + name if above else name
                self._one(path, old, self._trees.lookup(mine, name), new)
        return self._trees.patch_paths(ours, self._changes)

    def _one(
        self, path: bytes, base: Entry | None, ours: Entry | None, theirs: Entry | None
    ) -> None:
        """A name that theirs changed."""
        if ours == theirs:
            return
        if ours == base:
            self._changes[path] = theirs
        elif ours is None or theirs is None:
            self._deleted(path, base, ours, theirs)
        elif not same_type(ours, theirs):
            self._conflict(path, "type", base, ours, theirs)
        elif ours.is_dir:
            self._dirs(path, base, ours, theirs)
        else:
            self._files(path, base, ours, theirs)

    def _dirs(self, path: bytes, base: Entry | None, ours: Entry, theirs: Entry) -> None:
        if base is not None and not base.is_dir:
            base = None
        verdict = metadata(base, ours, theirs, favor=self._favor)
        if verdict.conflict:
            self._note(path, verdict.conflict, base, ours, theirs)
        entry = verdict.entry
        before = Oid(base.data) if base else self._trees.empty().oid
        if ours.data == before and theirs.data != before:
            entry = msgspec.structs.replace(entry, data=theirs.data, cid=theirs.cid)
        elif theirs.data not in (before, ours.data):
            self._todo.append((path, before, Oid(ours.data), Oid(theirs.data)))
        if entry != ours:
            self._changes[path] = entry

    def _files(self, path: bytes, base: Entry | None, ours: Entry, theirs: Entry) -> None:
        verdict = merge_file(base, ours, theirs, text=self._text, put=self._put, favor=self._favor)
        if verdict.conflict:
            self._note(path, verdict.conflict, base, ours, theirs)
        if verdict.entry != ours:
            self._changes[path] = verdict.entry

    def _deleted(
        self, path: bytes, base: Entry | None, ours: Entry | None, theirs: Entry | None
    ) -> None:
        """One side took away what the other changed."""
        kept = ours or theirs
        if base is not None and kept is not None and only_touched(base, kept):
            if ours is not None:
                self._changes[path] = None
            return
        kind: ConflictKind = "deleted_by_us" if ours is None else "deleted_by_them"
        self._conflict(path, kind, base, ours, theirs)

    def _conflict(
        self,
        path: bytes,
        kind: ConflictKind,
        base: Entry | None,
        ours: Entry | None,
        theirs: Entry | None,
    ) -> None:
        """Ours stays as a whole, or theirs comes as a whole."""
        self._note(path, kind, base, ours, theirs)
        if self._favor == "theirs":
            self._changes[path] = theirs

    def _note(self, path: bytes, kind: ConflictKind, *sides: Entry | None) -> None:
        base, ours, theirs = (_content_id(entry) for entry in sides)
        settled = self._favor is not None
        shown = os.fsdecode(path) or "."
        self.conflicts.append(FileConflict(shown, kind, base, ours, theirs, settled))

    def _text(self, base: Entry, ours: Entry, theirs: Entry) -> TextMerge | None:
        if any(entry.size > MAX_TEXT for entry in (base, ours, theirs)):
            return None
        texts = [b"".join(read_file(self._objects, entry)) for entry in (base, ours, theirs)]
        if any(is_binary(text) for text in texts):
            return None
        return merge_text(*texts, favor=self._favor or "ours")

    def _put(self, data: bytes) -> bytes:
        return put_bytes(self._objects, data)


def _content_id(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    return entry.data.hex() if entry.is_file or entry.is_dir else ""


def _three(base: T, ours: T, theirs: T) -> T:
    return theirs if ours == base else ours


def _merge_env(
    base: Mapping[str, str | None],
    ours: Mapping[str, str | None],
    theirs: Mapping[str, str | None],
) -> dict[str, str | None]:
    """By variable; one that a side has not set apart is as it was at the opening."""
    absent = object()
    merged: dict[str, str | None] = {}
    for name in sorted(base.keys() | ours.keys() | theirs.keys()):
        sides = [side.get(name, absent) for side in (base, ours, theirs)]
        value = _three(*sides)
        if value is None or isinstance(value, str):
            merged[name] = value
    return merged
