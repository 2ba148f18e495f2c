"""Three-way merge of one entry: its content, and each piece of its metadata."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ortet.history.merge.text_merge import Favor, TextMerge
from ortet.history.records import TreeEntry

ConflictKind = Literal["content", "added", "deleted_by_us", "deleted_by_them", "type", "metadata"]

MergeContent = Callable[[TreeEntry, TreeEntry, TreeEntry], TextMerge | None]
"""Contents of base, ours, theirs merged as text; None when they cannot be (binary, too large)."""

PutContent = Callable[[bytes], bytes]
"""Store a file's content -> its Oid, b"" when empty."""

_MERGED_METADATA_FIELDS = ("mode", "uid", "gid", "xattrs")


class EntryMerge(msgspec.Struct, frozen=True):
    """What becomes of a path. With an unsettled conflict `entry` is ours, untouched."""

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
    """Two entries of the same type, no directories, that differ from each other and from `base`."""
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
    """Ours with what theirs changed in mode, owner and xattrs; of two new mtimes the newer."""
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
    """Whether nothing but times changed: what the other side deleted may then go."""
    if not is_same_type(base, entry) or any(
        getattr(base, f) != getattr(entry, f) for f in _MERGED_METADATA_FIELDS
    ):
        return False
    return base.content == entry.content and base.rdev == entry.rdev


def is_same_type(a: TreeEntry, b: TreeEntry) -> bool:
    return stat.S_IFMT(a.mode) == stat.S_IFMT(b.mode)


def _choose_content_side(
    base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry, favor: Favor | None
) -> tuple[TreeEntry, ConflictKind | None]:
    """The side whose content is to be taken as a whole, and why there is none."""
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
