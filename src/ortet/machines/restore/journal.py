"""The journal of a restore. It is complete before the first step, so every step can be undone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import NotFound
from ortet.machines.dirfd import open_directory, remove_tree, translate_os_error
from ortet.machines.restore.steps import RestoreStep, undo_steps
from ortet.objects.tail import sync_data

T = TypeVar("T")


class RestoreBegin(StoredRecord, frozen=True):
    """The paths of a restore.

    Written before the staging area is created, to find it after a crash.
    """

    root: bytes
    area: bytes
    mtime: int | None = None  # mtime of the root, if the staging area inside it changes it


class RestoreLog(StoredRecord, frozen=True):
    """The steps of a restore."""

    steps: list[RestoreStep]
    mtime: int | None = None  # mtime of the root after success, if RestoreBegin has one


class RestoreJournal:
    """The files `begin`, `journal` and `done` in a directory of the machine.

    `begin` alone: no file was changed. `journal`: the steps must be undone. `done`: the restore is
    complete and only the cleanup is missing.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def begin(self, begin: RestoreBegin) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        (self._home / "done").unlink(missing_ok=True)  # a killed cleanup may leave it
        self._write("begin", begin)

    def write_log(self, log: RestoreLog) -> None:
        self._write("journal", log)
        with open_directory(self._home) as fd:
            os.fsync(fd)

    def mark_done(self) -> None:
        (self._home / "journal").rename(self._home / "done")

    def recover(self) -> bool:
        """Undo an unfinished restore, or clean up after a complete one. False if there is none."""
        begin = self._read("begin", RestoreBegin)
        if begin is None:
            return False
        shown = os.fsdecode(begin.root)
        if not os.path.isdir(begin.root):
            raise NotFound(
                "no_workspace",
                f"{shown} is gone, and a restore of it is unfinished: put it back, then try again",
            )
        try:
            done = self._read("done", RestoreLog)
            self._undo(begin)
            failpoint("thaw.undone")
            self._clean(begin, begin.mtime if done is None else done.mtime)
        except OSError as error:
            raise translate_os_error(
                error, f"cannot end an unfinished restore of {shown}"
            ) from error
        return True

    def _undo(self, begin: RestoreBegin) -> None:
        log = self._read("journal", RestoreLog)
        if log is None:
            return
        if os.path.isdir(begin.area):
            with open_directory(begin.root) as root, open_directory(begin.area) as area:
                undo_steps(root, area, log.steps)
        # Before the area is removed: half an area must not look like half a restore.
        (self._home / "journal").unlink()

    def _clean(self, begin: RestoreBegin, mtime: int | None) -> None:
        above, _, name = begin.area.rpartition(b"/")
        with contextlib.suppress(FileNotFoundError), open_directory(above or b"/") as at:
            remove_tree(at, name)
        if mtime is not None and os.stat(begin.root).st_mtime_ns != mtime:
            os.utime(begin.root, ns=(mtime, mtime))
        failpoint("thaw.cleaned")
        (self._home / "begin").unlink()
        (self._home / "done").unlink(missing_ok=True)

    def _write(self, name: str, record: StoredRecord) -> None:
        fresh = self._home / f"{name}.new"
        with fresh.open("wb") as file:
            file.write(encode(record))
            file.flush()
            sync_data(file.fileno())
        fresh.rename(self._home / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return decode(kind, (self._home / name).read_bytes())
        except FileNotFoundError:
            return None
