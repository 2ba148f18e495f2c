"""Checks, right before a restore replaces a file, that it has not changed since the snapshot.

So a concurrent edit is never overwritten.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from msgspec.structs import replace

from ortet.errors import Refused
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import GONE_ERRNOS, Unreadable, capture_with_stat
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.stat_index import (
    NOT_APPLIED,
    StatIndex,
    StatRecord,
    marks_of,
    stat_record,
)
from ortet.machines.dirfd import DirFdCache, join_path
from ortet.machines.restore.compare_images import PathChange
from ortet.machines.restore.step_order import order_removals
from ortet.machines.restore.steps import changed_error
from ortet.objects.base import DryRunObjectStore


class SwapCheck(NamedTuple):
    """The result of checking a planned swap on this disk."""

    moves: list[PathChange]  # the changes to apply; `old` is None if nothing is there
    kept_dirs: list[bytes]  # directories that stay, because they hold ignored files
    blocked: bool  # an ignored file is in the place of the new entry
    spared: bool = False  # it becomes an ignored file, and stays


class ChangeGuard:
    """Checks paths of a live workspace, and remembers their stat for `recheck`.

    `piecemeal`: directories cannot be renamed here, so every removed path is listed, deepest first.
    """

    def __init__(
        self,
        dirs: DirFdCache,
        trees: Trees,
        *,
        index: StatIndex,
        rules: IgnoreRules,
        target_rules: IgnoreRules,
        piecemeal: bool,
    ) -> None:
        self.piecemeal = piecemeal
        self.observed_stats: dict[bytes, os.stat_result | None] = {}
        self.removed_count = 0  # removed entries, including those below directories
        self._dirs = dirs
        self._trees = trees
        self._index = index
        self._rules = rules
        self._target_rules = target_rules  # the ignore rules after the restore
        self._dry_run_objects = DryRunObjectStore(trees.objects)

    def check_swap(self, change: PathChange) -> SwapCheck:
        """Check one planned swap. Raises Conflict if the disk does not have its old side."""
        path, old, new = change
        now = self._lstat(path)
        if old is None:
            if now is not None and not self._is_untracked(path, now):
                raise changed_error(path)
            return SwapCheck([] if now else [change], [], now is not None)
        if new is None and self._will_be_ignored(path, old):
            return SwapCheck([], [], False, spared=True)
        if not self.is_present(path):
            return SwapCheck([PathChange(path, None, new)] if new else [], [], False)
        if not old.is_dir:
            self.check_unchanged(path, old)
            self.removed_count += new is None
            return SwapCheck([change], [], False)
        if now is None or not stat.S_ISDIR(now.st_mode):
            raise changed_error(path)
        return self._check_removal(change, old)

    def _check_removal(self, change: PathChange, old: TreeEntry) -> SwapCheck:
        """Check a directory that is removed: all of it, or all but its ignored files."""
        below, kept_dirs = self._walk_removed(change.path, old)
        self.removed_count += sum(path not in kept_dirs for path, _ in below) + (not kept_dirs)
        moves = order_removals(change, below, kept_dirs, piecemeal=self.piecemeal)
        return SwapCheck(moves, sorted(kept_dirs), bool(kept_dirs) and change.new is not None)

    def check_directory(self, path: bytes) -> None:
        """Raise Conflict unless `path` is still a directory that is reached through directories."""
        try:
            self._dirs.fd(path)
        except OSError as error:
            if error.errno not in GONE_ERRNOS:
                raise
            raise changed_error(path) from error

    def is_present(self, path: bytes) -> bool:
        """Return False for a path that could never be created on this disk.

        A path in the index counts as present, so that its removal by another process is a conflict.
        """
        return self._lstat(path) is not None or self._is_indexed(path)

    def check_unchanged(
        self, path: bytes, entry: TreeEntry, now: os.stat_result | None = None
    ) -> None:
        """Raise Conflict unless the file at `path` is the one that was captured as `entry`."""
        now = now or self._lstat(path)
        if now is None:
            raise changed_error(path)
        known = self._index.lookup(path, now)
        if known is None:
            known = self._reread(path, now, entry)
        if known != entry:
            raise changed_error(path)

    def recheck(self) -> None:
        """Raise Conflict unless every checked path has the same stat.

        This is the last check before anything is changed.
        """
        self._dirs.close()  # a directory may have been moved: open all of them again
        for path, was in self.observed_stats.items():
            now = self._stat(path)
            if (now and stat_record(now)) != (was and stat_record(was)):
                raise changed_error(path)

    def _walk_removed(
        self, top: bytes, entry: TreeEntry
    ) -> tuple[list[tuple[bytes, TreeEntry]], set[bytes]]:
        """Return everything below a removed directory, and the directories with ignored files."""
        below: list[tuple[bytes, TreeEntry]] = []
        kept_dirs: set[bytes] = set()
        stack = [(top, entry)]
        while stack:
            path, directory = stack.pop()
            entries = {e.name: e for e in self._trees.entries(Oid(directory.data))}
            for name in os.listdir(self._dirs.fd(path)):
                raw = os.fsencode(name)
                item_path = join_path(path, raw)
                if raw not in entries:
                    self._keep_untracked(item_path, top, kept_dirs)
            for inner in entries.values():
                item_path = join_path(path, inner.name)
                if self._will_be_ignored(item_path, inner):
                    _keep_parents(item_path, top, kept_dirs)
                    continue
                if inner.is_dir:
                    stack.append((item_path, inner))
                    self._lstat(item_path)
                elif self.is_present(item_path):
                    self.check_unchanged(item_path, inner)
                else:
                    continue
                below.append((item_path, inner))
        return below, kept_dirs

    def _keep_untracked(self, path: bytes, top: bytes, kept_dirs: set[bytes]) -> None:
        """Keep a name that the image does not have, and all directories above it.

        Raises Conflict if the name is not an ignored file.
        """
        now = self._lstat(path)
        if now is None or not self._is_untracked(path, now):
            raise changed_error(path)
        _keep_parents(path, top, kept_dirs)

    def _will_be_ignored(self, path: bytes, entry: TreeEntry) -> bool:
        """Return True if the ignore files of the target ignore this path."""
        if self._target_rules.is_empty:
            return False
        if _is_ignored(self._target_rules, path, is_dir=entry.is_dir):
            return True
        limit = self._target_rules.size_limit(path) if entry.is_file else None
        return limit is not None and entry.size > limit

    def _is_untracked(self, path: bytes, now: os.stat_result) -> bool:
        """Return True if the path is not state: ignored, too large, or not readable."""
        if _is_ignored(self._rules, path, is_dir=stat.S_ISDIR(now.st_mode)):
            return True
        if not stat.S_ISREG(now.st_mode):
            return False
        limit = self._rules.size_limit(path)
        if limit is not None and now.st_size > limit:
            return True
        try:
            self._capture(path, now)
        except Unreadable:
            return True
        return False

    def _reread(self, path: bytes, now: os.stat_result, entry: TreeEntry) -> TreeEntry | None:
        """Read a file that the index cannot confirm. Return `entry` if the content is the same."""
        try:
            captured = self._capture(path, now)
        except Unreadable as error:
            shown = os.fsdecode(path)
            message = f"{shown} cannot be read, so it is not replaced: make it readable"
            raise Refused("unreadable", message) from error
        if captured is None:
            return None
        if self._mark(path) & NOT_APPLIED:
            same = captured.content == entry.content and captured.size == entry.size
        else:
            same = replace(captured, holes=entry.holes) == entry  # allocating blocks removes holes
        return entry if same else None

    def _capture(self, path: bytes, now: os.stat_result) -> TreeEntry | None:
        parent_fd, name = self._dirs.open_parent(path)
        losses: list[Loss] = []
        captured = capture_with_stat(
            self._dry_run_objects, parent_fd, name, now, path=path, losses=losses
        )
        return captured[0] if captured is not None and not losses else None

    def _mark(self, path: bytes) -> int:
        return marks_of(self._indexed_stat(path))

    def _is_indexed(self, path: bytes) -> bool:
        return bool(self._indexed_stat(path))

    def _indexed_stat(self, path: bytes) -> StatRecord:
        above, _, name = path.rpartition(b"/")
        node = self._index.find(above)
        return node.stats.get(os.fsdecode(name), ()) if node is not None else ()

    def _lstat(self, path: bytes) -> os.stat_result | None:
        if path not in self.observed_stats:
            self.observed_stats[path] = self._stat(path)
        return self.observed_stats[path]

    def _stat(self, path: bytes) -> os.stat_result | None:
        try:
            parent_fd, name = self._dirs.open_parent(path)
        except OSError as error:
            if error.errno not in GONE_ERRNOS:
                raise
            raise changed_error(path) from error
        try:
            return os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


def _is_ignored(rules: IgnoreRules, path: bytes, *, is_dir: bool) -> bool:
    """Return True if the path or a directory above it is ignored."""
    parts = path.split(b"/")
    above = (b"/".join(parts[:depth]) for depth in range(1, len(parts)))
    return any(rules.is_ignored(at, True) for at in above) or rules.is_ignored(path, is_dir)


def _keep_parents(path: bytes, top: bytes, kept_dirs: set[bytes]) -> None:
    """Add all directories above a path that stays, up to `top`."""
    while path != top:
        path = path.rpartition(b"/")[0]
        kept_dirs.add(path)
