"""Which names of a directory are state, and what is known to be missing from it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from ortet.machines.base import Loss
from ortet.machines.capture.entry import open_quietly
from ortet.machines.capture.frames import Found, Frame
from ortet.machines.capture.hardlinks import join
from ortet.machines.capture.ignore_rules import FILE, Rules
from ortet.machines.capture.seen import Node
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import Dirs

_FILE = os.fsdecode(FILE)
_OURS = ".ortet"
_MOST = 1 << 20


class Sieve:
    """Applies the rules of a workspace to the directories of a scan."""

    def __init__(self, index: StatIndex, rules: Rules) -> None:
        self._index = index
        self._rules = rules

    def apply(self, frame: Frame, found: Found) -> None:
        """Read this directory's ignore file; where rules changed, ask again for all below it."""
        node, path = frame.node, frame.path
        if _FILE in node.seen or any(name == _FILE for name, _ in found.fresh):
            self._rules.set(path, _read(frame.fd))
        elif self._rules.known(path):
            self._rules.set(path, None)
        digest = self._rules.digest(path)
        if digest != node.rules:
            node.rules = digest
            frame.plan = None
            for name, was in node.seen.items():
                if self.left_out(frame, name, was[0], size=was[6]):
                    found.gone.add(name)

    def left_out(self, frame: Frame, name: str, mode: int, *, size: int) -> bool:
        """Is it no state? Being too large for a rule is a loss, too."""
        rules = self._rules
        if rules.empty and not name.startswith(_OURS):
            return False
        path = join(frame.path, os.fsencode(name))
        if rules.ignored(path, stat.S_ISDIR(mode)):
            return True
        limit = rules.limit(path) if stat.S_ISREG(mode) else None
        if limit is None or size <= limit:
            return False
        why = f"its {size} bytes are more than the {limit} that {_FILE} allows"
        self.lose(frame, name, Loss(os.fsdecode(path), "size", why))
        return True

    def lose(self, frame: Frame, name: str, *losses: Loss) -> None:
        self._index.losses.setdefault(frame.path, {})[name] = list(losses)

    def reload(
        self, fd: int, ruled: list[bytes], governed: list[tuple[bytes, Node]]
    ) -> list[bytes]:
        """Read all the ignore files there are; which of `governed` are under other rules now."""
        self._rules.clear()
        with Dirs(fd) as dirs:
            for path in ruled:
                with suppress(OSError):
                    self._rules.set(path, _read(dirs.fd(path)))
        return [path for path, node in governed if self._rules.digest(path) != node.rules]

    def forget(self, path: bytes) -> None:
        """A directory is gone, with its ignore files."""
        self._rules.forget(path)


def _read(fd: int) -> bytes | None:
    """The text of an ignore file that is a plain file."""
    try:
        own = open_quietly(FILE, fd)
    except OSError:
        return None
    try:
        return os.read(own, _MOST) if stat.S_ISREG(os.fstat(own).st_mode) else None
    finally:
        os.close(own)
