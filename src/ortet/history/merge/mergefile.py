"""Three-way merge of one entry: its content, and each metadata field."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ortet.history.merge.text_merge import Favor, TextMerge
from ortet.history.records import TreeEntry

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
