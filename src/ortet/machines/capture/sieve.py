"""Applies the ignore rules during a scan, and records the losses of each directory."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from ortet.machines.base import Loss
from ortet.machines.capture.entry import open_noatime
from ortet.machines.capture.frames import DirectoryChanges, DirectoryScan
from ortet.machines.capture.hardlinks import join_path
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.capture.seen import DirectoryNode
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import DirFdCache

_FILE = os.fsdecode(IGNORE_FILE)
_OURS = ".ortet"
_MAX_IGNORE_FILE_BYTES = 1 << 20


class IgnoreFilter:
    """Applies the rules of a workspace to the directories of a scan."""

    def __init__(self, index: StatIndex, rules: IgnoreRules) -> None:
        self._index = index
        self._rules = rules

    def apply(self, frame: DirectoryScan, changes: DirectoryChanges) -> None:
        """Read the ignore file of a directory.

        If the rules changed, scan everything below it again.
        """
        node, path = frame.node, frame.path
        if _FILE in node.stats or any(name == _FILE for name, _ in changes.changed):
            self._rules.set_rules(path, _read(frame.fd))
        elif self._rules.has_rules(path):
            self._rules.set_rules(path, None)
        digest = self._rules.digest(path)
        if digest != node.rules_digest:
            node.rules_digest = digest
            frame.plan = None
            for name, was in node.stats.items():
                if self.is_left_out(frame, name, was[0], size=was[6]):
                    changes.removed.add(name)

    def is_left_out(self, frame: DirectoryScan, name: str, mode: int, *, size: int) -> bool:
        """Return True if a name is not state.

        A file that is too large is also recorded as a loss.
        """
        rules = self._rules
        if rules.is_empty and not name.startswith(_OURS):
            return False
        path = join_path(frame.path, os.fsencode(name))
        if rules.is_ignored(path, stat.S_ISDIR(mode)):
            return True
        limit = rules.size_limit(path) if stat.S_ISREG(mode) else None
        if limit is None or size <= limit:
            return False
        why = f"its {size} bytes are more than the {limit} that {_FILE} allows"
        self.record_loss(frame, name, Loss(os.fsdecode(path), "size", why))
        return True

    def record_loss(self, frame: DirectoryScan, name: str, *losses: Loss) -> None:
        self._index.losses.setdefault(frame.path, {})[name] = list(losses)

    def reload(
        self, fd: int, rule_dirs: list[bytes], governed: list[tuple[bytes, DirectoryNode]]
    ) -> list[bytes]:
        """Read all ignore files again and return the directories whose rules changed."""
        self._rules.clear()
        with DirFdCache(fd) as dirs:
            for path in rule_dirs:
                with suppress(OSError):
                    self._rules.set_rules(path, _read(dirs.fd(path)))
        return [path for path, node in governed if self._rules.digest(path) != node.rules_digest]

    def forget_directory(self, path: bytes) -> None:
        """Remove the rules of a deleted directory."""
        self._rules.remove_below(path)


def _read(fd: int) -> bytes | None:
    """Return the text of the ignore file in a directory, or None if it is no regular file."""
    try:
        own = open_noatime(IGNORE_FILE, fd)
    except OSError:
        return None
    try:
        return os.read(own, _MAX_IGNORE_FILE_BYTES) if stat.S_ISREG(os.fstat(own).st_mode) else None
    finally:
        os.close(own)
