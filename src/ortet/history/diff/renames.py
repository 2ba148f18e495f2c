"""Finds renames among removed and added paths, by equal content only."""

from __future__ import annotations

from collections.abc import Iterable

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees

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
    for found in removed:
        if found[1].is_dir and found[1].cid != empty:
            buckets.setdefault(found[1].cid, []).append(found)
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
    for found in reversed(removed):
        if found[1].is_file and found[1].size:
            named.setdefault((_name(found[0]), found[1].content), []).append(found)
            any_name.setdefault(found[1].content, []).append(found)
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
