"""Is what is about to be replaced still what was frozen? Nobody's fresh save may be lost."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from msgspec.structs import replace

from ortet.errors import Refused
from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import GONE, Unreadable, look
from ortet.machines.capture.ignore_rules import Rules
from ortet.machines.capture.stat_index import ODD, Seen, StatIndex, mark_of, seen
from ortet.machines.dirfd import Dirs
from ortet.machines.restore.plan import Change, join
from ortet.machines.restore.steps import changed
from ortet.objects.scratch import Scratch


class Verdict(NamedTuple):
    """What a planned swap really is on this disk."""

    moves: list[Change]  # what to do; `old` None: nothing is there
    kept: list[bytes]  # directories that have to stay, because they hold what is no state
    blocked: bool  # the new entry can not come, because something that is no state is in its place
    spared: bool = False  # it is no state any more, and stays


class Looker:
    """Looks at paths of a live workspace, and remembers how they looked for `again`.

    `piecemeal`: directories cannot be renamed here, so all that goes is named, deepest first.
    """

    def __init__(
        self,
        dirs: Dirs,
        trees: Trees,
        *,
        index: StatIndex,
        rules: Rules,
        coming: Rules,
        piecemeal: bool,
    ) -> None:
        self.piecemeal = piecemeal
        self.stats: dict[bytes, os.stat_result | None] = {}
        self.gone = 0  # entries that go, with all below directories
        self._dirs = dirs
        self._trees = trees
        self._index = index
        self._rules = rules
        self._coming = coming  # what the ignore files will say afterwards
        self._scratch = Scratch(trees.objects)

    def swap(self, change: Change) -> Verdict:
        """Check one planned swap; Conflict when its old side is not what is there."""
        path, old, new = change
        now = self._lstat(path)
        if old is None:
            if now is not None and not self._left_out(path, now):
                raise changed(path)
            return Verdict([] if now else [change], [], now is not None)
        if new is None and self._spared(path, old):
            return Verdict([], [], False, spared=True)
        if not self.is_there(path):
            return Verdict([Change(path, None, new)] if new else [], [], False)
        if not old.is_dir:
            self.same(path, old)
            self.gone += new is None
            return Verdict([change], [], False)
        if now is None or not stat.S_ISDIR(now.st_mode):
            raise changed(path)
        return self._leave(change, old)

    def _leave(self, change: Change, old: Entry) -> Verdict:
        """A directory goes: as a whole, or, when it holds what is no state, all but that."""
        below, kept = self._tree(change.path, old)
        moves = [Change(at, entry, None) for at, entry in reversed(below) if at not in kept]
        self.gone += len(moves) + (not kept)
        if not self.piecemeal:
            moves = [move for move in moves if move.path.rpartition(b"/")[0] in kept]
        if not kept:
            moves.append(change)
        return Verdict(moves, sorted(kept), bool(kept) and change.new is not None)

    def directory(self, path: bytes) -> None:
        """Conflict unless it is still a directory, reached through directories."""
        try:
            self._dirs.fd(path)
        except OSError as error:
            if error.errno not in GONE:
                raise
            raise changed(path) from error

    def is_there(self, path: bytes) -> bool:
        """Or is it one of the things that this disk could never be given?"""
        return self._lstat(path) is not None or self._was_seen(path)

    def same(self, path: bytes, entry: Entry, now: os.stat_result | None = None) -> None:
        """Conflict unless the file at `path` is the one that became `entry`."""
        now = now or self._lstat(path)
        if now is None:
            raise changed(path)
        known = self._index.lookup(path, now)
        if known is None:
            known = self._reread(path, now, entry)
        if known != entry:
            raise changed(path)

    def again(self) -> None:
        """Conflict unless all still looks as it did: asked last, before anything is touched."""
        self._dirs.close()  # a directory may have been moved: find every one anew
        for path, was in self.stats.items():
            now = self._stat(path)
            if (now and seen(now)) != (was and seen(was)):
                raise changed(path)

    def _tree(self, top: bytes, entry: Entry) -> tuple[list[tuple[bytes, Entry]], set[bytes]]:
        """All below a directory that goes, and the directories that hold what is no state."""
        below: list[tuple[bytes, Entry]] = []
        kept: set[bytes] = set()
        stack = [(top, entry)]
        while stack:
            path, directory = stack.pop()
            entries = {e.name: e for e in self._trees.entries(Oid(directory.data))}
            for name in os.listdir(self._dirs.fd(path)):
                raw = os.fsencode(name)
                at = join(path, raw)
                if raw not in entries:
                    self._stranger(at, top, kept)
            for inner in entries.values():
                at = join(path, inner.name)
                if self._spared(at, inner):
                    _hold(at, top, kept)
                    continue
                if inner.is_dir:
                    stack.append((at, inner))
                    self._lstat(at)
                elif self.is_there(at):
                    self.same(at, inner)
                else:
                    continue
                below.append((at, inner))
        return below, kept

    def _stranger(self, path: bytes, top: bytes, kept: set[bytes]) -> None:
        """A name the image does not know: it stays, and with it all directories above."""
        now = self._lstat(path)
        if now is None or not self._left_out(path, now):
            raise changed(path)
        _hold(path, top, kept)

    def _spared(self, path: bytes, entry: Entry) -> bool:
        """Will the ignore files that come say that it is no state?"""
        if self._coming.empty:
            return False
        if _ignored(self._coming, path, is_dir=entry.is_dir):
            return True
        limit = self._coming.limit(path) if entry.is_file else None
        return limit is not None and entry.size > limit

    def _left_out(self, path: bytes, now: os.stat_result) -> bool:
        """Is it no state: ignored, too large, or not readable by us?"""
        if _ignored(self._rules, path, is_dir=stat.S_ISDIR(now.st_mode)):
            return True
        if not stat.S_ISREG(now.st_mode):
            return False
        limit = self._rules.limit(path)
        if limit is not None and now.st_size > limit:
            return True
        try:
            self._read(path, now)
        except Unreadable:
            return True
        return False

    def _reread(self, path: bytes, now: os.stat_result, entry: Entry) -> Entry | None:
        """Where the index cannot vouch for it: `entry` itself, if reading comes to the same."""
        try:
            found = self._read(path, now)
        except Unreadable as error:
            shown = os.fsdecode(path)
            message = f"{shown} cannot be read, so it is not replaced: make it readable"
            raise Refused("unreadable", message) from error
        if found is None:
            return None
        if self._mark(path) & ODD:
            same = found.content == entry.content and found.size == entry.size
        else:
            same = replace(found, holes=entry.holes) == entry  # holes close as blocks are allocated
        return entry if same else None

    def _read(self, path: bytes, now: os.stat_result) -> Entry | None:
        at, name = self._dirs.parent(path)
        losses: list[Loss] = []
        found = look(self._scratch, at, name, now, path=path, losses=losses)
        return found[0] if found is not None and not losses else None

    def _mark(self, path: bytes) -> int:
        return mark_of(self._seen(path))

    def _was_seen(self, path: bytes) -> bool:
        return bool(self._seen(path))

    def _seen(self, path: bytes) -> Seen:
        above, _, name = path.rpartition(b"/")
        node = self._index.find(above)
        return node.seen.get(os.fsdecode(name), ()) if node is not None else ()

    def _lstat(self, path: bytes) -> os.stat_result | None:
        if path not in self.stats:
            self.stats[path] = self._stat(path)
        return self.stats[path]

    def _stat(self, path: bytes) -> os.stat_result | None:
        try:
            at, name = self._dirs.parent(path)
        except OSError as error:
            if error.errno not in GONE:
                raise
            raise changed(path) from error
        try:
            return os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None


def _ignored(rules: Rules, path: bytes, *, is_dir: bool) -> bool:
    """By its own name, or by that of a directory above."""
    parts = path.split(b"/")
    above = (b"/".join(parts[:depth]) for depth in range(1, len(parts)))
    return any(rules.ignored(at, True) for at in above) or rules.ignored(path, is_dir)


def _hold(path: bytes, top: bytes, kept: set[bytes]) -> None:
    """What stays keeps the directories above it."""
    while path != top:
        path = path.rpartition(b"/")[0]
        kept.add(path)
