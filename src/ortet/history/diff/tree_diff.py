"""Differences between two trees, and between two files. Equal pages and subtrees are not read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

import msgspec

from ortet.history.diff import line_diff
from ortet.history.records import Image, TreeEntry
from ortet.history.references import read_hardlinks
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import read_file

# Finds renames among removed and added paths, by equal content only.

PathEntry = tuple[bytes, TreeEntry]
Rename = tuple[bytes, TreeEntry, bytes, TreeEntry]
"""Old path and entry, new path and entry."""


def find_renames(
    trees: Trees, removed: list[PathEntry], added: list[PathEntry]
) -> tuple[list[Rename], list[PathEntry], list[PathEntry]]:
    """Return the renames, and the other removed and added paths with everything below them.

    A directory is a rename if its whole content is equal. Then non-empty files are matched.
    """
    empty = trees.empty().cid
    renames = _match_dirs(removed, added, empty)
    # Only directories that are not renamed as a whole are read. Moving a large directory is cheap.
    gone = _expand_directories(trees, _exclude_below(removed, (rename[0] for rename in renames)))
    come = _expand_directories(trees, _exclude_below(added, (rename[2] for rename in renames)))
    inner = _match_dirs(gone, come, empty)
    gone = _exclude_below(gone, (rename[0] for rename in inner))
    come = _exclude_below(come, (rename[2] for rename in inner))
    files = _match_files(gone, come)
    gone = _exclude_paths(gone, {rename[0] for rename in files})
    come = _exclude_paths(come, {rename[2] for rename in files})
    return renames + inner + files, gone, come


def _match_dirs(removed: list[PathEntry], added: list[PathEntry], empty: bytes) -> list[Rename]:
    """Pair directories with equal content, highest first, none inside another."""
    buckets: dict[bytes, list[PathEntry]] = {}
    for removal in removed:
        if removal[1].is_dir and removal[1].cid != empty:
            buckets.setdefault(removal[1].cid, []).append(removal)
    pairs: list[Rename] = []
    matched_old: set[bytes] = set()
    matched_new: set[bytes] = set()
    above_matched: set[bytes] = set()
    for path, entry in sorted(added, key=lambda found: (found[0].count(b"/"), found[0])):
        bucket = buckets.get(entry.cid, []) if entry.is_dir else []
        if not bucket or _is_at_or_below(path, matched_new):
            continue
        free = [
            f
            for f in bucket
            if f[0] not in above_matched and not _is_at_or_below(f[0], matched_old)
        ]
        if not free:
            continue
        name = _name(path)
        old_path, old = min(free, key=lambda found: (_name(found[0]) != name, found[0]))
        pairs.append((old_path, old, path, entry))
        matched_old.add(old_path)
        matched_new.add(path)
        above_matched.update(_parents(old_path))
    return pairs


def _match_files(removed: list[PathEntry], added: list[PathEntry]) -> list[Rename]:
    """Pair files with equal content. Prefer a file that kept its name."""
    named: dict[object, list[PathEntry]] = {}
    any_name: dict[object, list[PathEntry]] = {}
    for removal in reversed(removed):
        if removal[1].is_file and removal[1].size:
            named.setdefault((_name(removal[0]), removal[1].content), []).append(removal)
            any_name.setdefault(removal[1].content, []).append(removal)
    pairs: list[Rename] = []
    used: set[bytes] = set()
    rest: list[PathEntry] = []
    for path, entry in added:
        same = named.get((_name(path), entry.content))
        if same:
            old_path, old = same.pop()
            used.add(old_path)
            pairs.append((old_path, old, path, entry))
        else:
            rest.append((path, entry))
    for path, entry in rest:
        bucket = any_name.get(entry.content, [])
        while bucket and bucket[-1][0] in used:
            bucket.pop()
        if bucket:
            old_path, old = bucket.pop()
            pairs.append((old_path, old, path, entry))
    return pairs


def _expand_directories(trees: Trees, entries: list[PathEntry]) -> list[PathEntry]:
    """Return these entries and everything below them, directories before their entries."""
    out: list[PathEntry] = []
    for path, entry in entries:
        out.append((path, entry))
        out += trees.walk(entry, path)
    return out


def _exclude_below(entries: list[PathEntry], directories: Iterable[bytes]) -> list[PathEntry]:
    """Return the entries outside these directories."""
    inside = set(directories)
    return [item for item in entries if not _is_at_or_below(item[0], inside)] if inside else entries


def _exclude_paths(entries: list[PathEntry], paths: set[bytes]) -> list[PathEntry]:
    return [item for item in entries if item[0] not in paths]


def _is_at_or_below(path: bytes, directories: set[bytes]) -> bool:
    return path in directories or any(parent in directories for parent in _parents(path))


def _parents(path: bytes) -> Iterable[bytes]:
    while path:
        path = path.rpartition(b"/")[0]
        if path:
            yield path


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


ChangeKind = Literal["added", "removed", "modified", "metadata", "renamed"]

MAX_DIFF_TEXT_BYTES = 4 << 20
"""For larger files only the sizes are shown."""

_METADATA_FIELDS = ("mode", "mtime", "uid", "gid", "xattrs", "holes")


class TreeChange(msgspec.Struct, frozen=True):
    """One difference. Paths are relative and surrogate-escaped. The root is ".".

    A renamed directory is one change: its entries have the same content and are not listed.

    Attributes:
        path: The path in the new tree, or the removed path.
        kind: How the path changed.
        old_path: The path before a rename.
        old: The old entry, or None.
        new: The new entry, or None.
        content_changed: True if the content differs.
        fields: The metadata that differs; "below" means only inside a renamed directory.
    """

    path: str
    kind: ChangeKind
    old_path: str | None = None
    old: TreeEntry | None = None
    new: TreeEntry | None = None
    content_changed: bool = False
    fields: list[str] = []


def is_directory_touch(change: TreeChange) -> bool:
    """Return True if only the mtime of a directory changed.

    This happens when an ignored file is created or deleted in it.
    """
    entry = change.new or change.old
    return (
        change.kind == "metadata"
        and change.fields == ["mtime"]
        and entry is not None
        and entry.is_dir
    )


def diff_images(trees: Trees, a: Image | None, b: Image) -> list[TreeChange]:
    """Return the workspace differences from `a` (None: empty) to `b`, sorted by path."""
    changes = diff_trees(trees, a.root if a else None, b.root)
    if a is not None and a.links != b.links:
        changes += _diff_links(trees, a, b, {change.path for change in changes})
    return sorted(changes, key=lambda change: os.fsencode(change.path))


def diff_trees(trees: Trees, a: TreeEntry | None, b: TreeEntry | None) -> list[TreeChange]:
    """Return the differences from directory `a` to `b` (None: empty), sorted by path.

    A directory whose mtime changed only because its entries changed is not listed.
    """
    nothing = trees.empty()
    changes: list[TreeChange] = []
    removed: list[PathEntry] = []
    added: list[PathEntry] = []
    if a is not None and b is not None:
        changes += _compare(b"", a, b)
    todo = [(b"", Oid(a.data) if a else nothing.oid, Oid(b.data) if b else nothing.oid)]
    while todo:
        above, before, after = todo.pop()
        for old, new in trees.difference(before, after):
            path = _join(above, (new or old).name)  # type: ignore[union-attr]
            if old is not None and new is not None and old.is_dir == new.is_dir:
                changes += _compare(path, old, new)
                if old.is_dir and old.data != new.data:
                    todo.append((path, Oid(old.data), Oid(new.data)))
                continue
            removed += [(path, old)] if old is not None else []
            added += [(path, new)] if new is not None else []
    changes += _added_removed_renamed(trees, removed, added)
    return sorted(changes, key=lambda change: os.fsencode(change.path))


def _compare(path: bytes, old: TreeEntry, new: TreeEntry) -> list[TreeChange]:
    """Compare two entries of one name, both directories or both not."""
    fields = _changed_fields(old, new)
    content = False
    if old.is_dir:
        if old.data != new.data and fields == ["mtime"]:
            fields = []
    else:
        content = (old.mode >> 12, old.data, old.rdev) != (new.mode >> 12, new.data, new.rdev)
    if not fields and not content:
        return []
    kind: ChangeKind = "modified" if content else "metadata"
    return [TreeChange(_display_path(path), kind, None, old, new, content, fields)]


def _changed_fields(old: TreeEntry, new: TreeEntry) -> list[str]:
    return [name for name in _METADATA_FIELDS if getattr(old, name) != getattr(new, name)]


def _added_removed_renamed(
    trees: Trees, removed: list[PathEntry], added: list[PathEntry]
) -> list[TreeChange]:
    """Find renames. List the remaining paths as removed and added, with everything below them."""
    renames, gone, come = find_renames(trees, removed, added)
    changes: list[TreeChange] = []
    for old_path, old, path, new in renames:
        fields = _changed_fields(old, new)
        if old.is_dir and old.data != new.data:
            fields.append("below")
        changes.append(
            TreeChange(
                _display_path(path), "renamed", _display_path(old_path), old, new, False, fields
            )
        )
    changes += [
        TreeChange(_display_path(p), "removed", None, entry, None, True) for p, entry in gone
    ]
    changes += [TreeChange(_display_path(p), "added", None, None, entry, True) for p, entry in come]
    return changes


def _diff_links(trees: Trees, a: Image, b: Image, reported: set[str]) -> list[TreeChange]:
    """Find files with equal content that share their inode with other names than before."""
    before, after = (_group_by_path(read_hardlinks(trees.objects, image.links)) for image in (a, b))
    changes: list[TreeChange] = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path) and _display_path(path) not in reported:
            old, new = trees.resolve(a.root, path), trees.resolve(b.root, path)
            if old is not None and new is not None:
                changes.append(
                    TreeChange(_display_path(path), "metadata", None, old, new, False, ["links"])
                )
    return changes


def _group_by_path(groups: list[list[bytes]]) -> dict[bytes, list[bytes]]:
    return {path: group for group in groups for path in group}


def file_diff(
    objects: ObjectStore,
    old: TreeEntry | None,
    new: TreeEntry | None,
    *,
    path: str,
    old_path: str | None = None,
    context: int = 3,
) -> str:
    """Return the unified diff of two files or symlinks (None: missing), or "" if they are equal.

    For binary and very large files, return one line with both sizes.
    """
    if old is not None and new is not None and old.content[1] == new.content[1]:
        return ""
    before, after = _text(objects, old), _text(objects, new)
    sizes = f"{_size(old)} -> {_size(new)} bytes"
    if before is None or after is None:
        return f"Binary file {path} differs ({sizes})\n"
    names = f"a/{old_path or path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null"
    body = line_diff.unified_diff(
        line_diff.split_lines(before), line_diff.split_lines(after), context
    )
    return f"--- {names[0]}\n+++ {names[1]}\n" + "".join(body) if body else ""


def _text(objects: ObjectStore, entry: TreeEntry | None) -> bytes | None:
    """Return content that can be shown as text, otherwise None."""
    if entry is None:
        return b""
    if entry.is_link:
        return entry.data
    if not entry.is_file or entry.size > MAX_DIFF_TEXT_BYTES:
        return None
    data = b"".join(read_file(objects, entry))
    return None if b"\0" in data else data


def _size(entry: TreeEntry | None) -> int:
    return 0 if entry is None else len(entry.data) if entry.is_link else entry.size


def _join(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above else name


def _display_path(path: bytes) -> str:
    return os.fsdecode(path) or "."
