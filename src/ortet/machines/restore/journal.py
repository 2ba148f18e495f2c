"""The journal of a thaw: written whole before the first step, so that every step can be undone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

from ortet._util.codec import Record, decode, encode
from ortet._util.failpoints import reach
from ortet.errors import NotFound
from ortet.machines.dirfd import directory, failure, remove
from ortet.machines.restore.steps import Step, undo
from ortet.objects.tail import sync_data

T = TypeVar("T")


class Begin(Record, frozen=True):
    """Where a thaw works; written before the area is made, so that it is found after a crash."""

    root: bytes
    area: bytes
    mtime: int | None = None  # of the root, when the area lies in it and so moves it


class Log(Record, frozen=True):
    steps: list[Step]
    mtime: int | None = None  # of the root after success, where Begin has one


class Journal:
    """The files `begin`, `journal` and `done` in a directory of the machine's own.

    `begin` alone: nothing was touched. `journal`: undo it. `done`: it is complete, only clean up.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def begin(self, begin: Begin) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        (self._home / "done").unlink(missing_ok=True)  # cleaning up was killed at its last step
        self._write("begin", begin)

    def write(self, log: Log) -> None:
        self._write("journal", log)
        with directory(self._home) as fd:
            os.fsync(fd)

    def done(self) -> None:
        (self._home / "journal").rename(self._home / "done")

    def recover(self) -> bool:
        """Undo what was begun, or clean up after what was done; False: there was nothing."""
        begin = self._read("begin", Begin)
        if begin is None:
            return False
        shown = os.fsdecode(begin.root)
        if not os.path.isdir(begin.root):
            raise NotFound(
                "no_workspace",
                f"{shown} is gone, and a restore of it is unfinished: put it back, then try again",
            )
        try:
            done = self._read("done", Log)
            self._undo(begin)
            reach("thaw.undone")
            self._clean(begin, begin.mtime if done is None else done.mtime)
        except OSError as error:
            raise failure(error, f"cannot end an unfinished restore of {shown}") from error
        return True

    def _undo(self, begin: Begin) -> None:
        log = self._read("journal", Log)
        if log is None:
            return
        if os.path.isdir(begin.area):
            with directory(begin.root) as root, directory(begin.area) as area:
                undo(root, area, log.steps)
        # before the area goes: half an area must not be taken for half a thaw
        (self._home / "journal").unlink()

    def _clean(self, begin: Begin, mtime: int | None) -> None:
        above, _, name = begin.area.rpartition(b"/")
        with contextlib.suppress(FileNotFoundError), directory(above or b"/") as at:
            remove(at, name)
        if mtime is not None and os.stat(begin.root).st_mtime_ns != mtime:
            os.utime(begin.root, ns=(mtime, mtime))
        reach("thaw.cleaned")
        (self._home / "begin").unlink()
        (self._home / "done").unlink(missing_ok=True)

    def _write(self, name: str, record: Record) -> None:
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
