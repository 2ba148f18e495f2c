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

from ortet.machines.live.cgroups import GROUP_PREFIX, CgroupFactory, read_record, remove_group

_RECORDS_DIRECTORY = "reserved"
_REMOVE_TRIES, _REMOVE_PAUSE_SECONDS = 50, 0.01
_CONTROLLER = "pids"  # the one that every machine has a limit of


class ReservedCgroups:
    """Those of one process, each written down below `area` until it is given away."""

    def __init__(self, cgroups: CgroupFactory, area: Path) -> None:
        self._cgroups = cgroups
        self._records = area / _RECORDS_DIRECTORY
        self._reserved: set[str] = set()
        self._abandoned: set[str] = set()  # of those, whose CRIU was told to end

    def create(self) -> str:
        """A new one; nothing where this host has none for us."""
        self._remove_abandoned()
        place = self._cgroups.parents.get(_CONTROLLER)
        if place is None:
            return ""
        path = place.path / f"{GROUP_PREFIX}spare-{os.urandom(8).hex()}"
        try:
            self._records.mkdir(parents=True, exist_ok=True)
            self._record_path(str(path)).write_text(f"{path}\n")
            path.mkdir()
        except OSError:
            return ""
        self._reserved.add(str(path))
        return str(path)

    def assign(self, group: str) -> None:
        """It is a machine's now, whose home says so."""
        if group:
            self._reserved.discard(group)
            self._abandoned.discard(group)
            self._record_path(group).unlink(missing_ok=True)

    def abandon(self, group: str) -> None:
        """Nobody wants it: it is removed when the CRIU in it has ended."""
        if group in self._reserved:
            self._abandoned.add(group)

    def close(self) -> None:
        """All, when no CRIU is left that waits; what still has an ending one in it is found later
        by its record."""
        self._abandoned |= self._reserved
        for _ in range(_REMOVE_TRIES):
            self._remove_abandoned()
            if not self._abandoned:
                return
            time.sleep(_REMOVE_PAUSE_SECONDS)

    def _record_path(self, group: str) -> Path:
        return self._records / f"{os.getpid()}-{os.path.basename(group)}"

    def _remove_abandoned(self) -> None:
        for group in list(self._abandoned):
            if remove_group(Path(group)):
                self.assign(group)
        remove_leftover_groups(self._records.parent)


def leftover_records(area: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Records of processes that have ended, and the groups they name."""
    with suppress(OSError):
        for record in (area / _RECORDS_DIRECTORY).iterdir():
            if not os.path.isdir(f"/proc/{record.name.partition('-')[0]}"):
                yield record, read_record(record)


def remove_leftover_groups(area: Path) -> None:
    for record, groups in leftover_records(area):
        if all(map(remove_group, groups)):
            record.unlink(missing_ok=True)
