"""Control groups made before there is a machine for them, with a CRIU in each that waits.

To bring a process that runs into a group takes as long as a small restore: the kernel waits until
nobody looks at groups. One that joins by itself, before it has anything to do, need not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet.machines.live.cgroups import PREFIX, Groups, remove_group, written

_PLACE = "reserved"
_TRIES, _PAUSE = 50, 0.01
_CONTROLLER = "pids"  # the one that every machine has a limit of


class Reserved:
    """Those of one process, each written down below `area` until it is given away."""

    def __init__(self, groups: Groups, area: Path) -> None:
        self._groups = groups
        self._place = area / _PLACE
        self._ours: set[str] = set()
        self._over: set[str] = set()  # of those, whose CRIU was told to end

    def make(self) -> str:
        """A new one; nothing where this host has none for us."""
        self._tidy()
        place = self._groups.places.get(_CONTROLLER)
        if place is None:
            return ""
        path = place.path / f"{PREFIX}spare-{os.urandom(8).hex()}"
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            self._record(str(path)).write_text(f"{path}\n")
            path.mkdir()
        except OSError:
            return ""
        self._ours.add(str(path))
        return str(path)

    def give(self, group: str) -> None:
        """It is a machine's now, whose home says so."""
        if group:
            self._ours.discard(group)
            self._over.discard(group)
            self._record(group).unlink(missing_ok=True)

    def drop(self, group: str) -> None:
        """Nobody wants it: it is removed when the CRIU in it has ended."""
        if group in self._ours:
            self._over.add(group)

    def close(self) -> None:
        """All, when no CRIU is left that waits; what still has an ending one in it is found later
        by its record."""
        self._over |= self._ours
        for _ in range(_TRIES):
            self._tidy()
            if not self._over:
                return
            time.sleep(_PAUSE)

    def _record(self, group: str) -> Path:
        return self._place / f"{os.getpid()}-{os.path.basename(group)}"

    def _tidy(self) -> None:
        for group in list(self._over):
            if remove_group(Path(group)):
                self.give(group)
        remove_left(self._place.parent)


def left(area: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Records of processes that have ended, and the groups they name."""
    with suppress(OSError):
        for record in (area / _PLACE).iterdir():
            if not os.path.isdir(f"/proc/{record.name.partition('-')[0]}"):
                yield record, written(record)


def remove_left(area: Path) -> None:
    for record, groups in left(area):
        if all(map(remove_group, groups)):
            record.unlink(missing_ok=True)
