"""Reads small files as a machine sees them, from outside: links are followed inside its root."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

import msgspec

from ortet.machines.base import Result

_MAX_LINKS = 40
_MAX_READ_BYTES = 64 << 20


RunCommand = Callable[..., Result]
_MACHINE = re.compile(r"/proc/\d+/root(?=/|\Z)")


class ProbeTarget(msgspec.Struct, frozen=True):
    """Where to look. `path` is the workspace on the host, "" when there is none; `run` is given
    where commands run in another view of the system than ours."""

    path: str = ""
    run: RunCommand | None = None
    left_out: str = ""  # a directory of the workspace whose changes are our own

    @property
    def root(self) -> str:
        """The root of its machine as the host sees it; "" is ours."""
        found = _MACHINE.match(self.path)
        return found.group() if found else ""

    @property
    def workspace_path(self) -> str:
        """The workspace as its machine sees it."""
        return self.path.removeprefix(self.root)


class RootedReader:
    """Below `root`, which is "" where the machine sees what the host sees. Nothing here raises for
    what is not there, no file, or closed to us."""

    def __init__(self, root: str = "") -> None:
        self.root = root

    def resolve(self, path: str) -> str | None:
        """The real place of an absolute path of the machine, on the host; None when there is none.

        Step by step: the kernel would take an absolute link to start from our root, not from its.
        """
        todo, done, links = _parts(path), list[str](), 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            here = "/".join((self.root, *done, part))
            try:
                target = os.readlink(here)
            except FileNotFoundError:
                return None
            except OSError:  # no link
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                done.clear()
            todo += _parts(target)
        return "/".join((self.root, *done)) or "/"

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes | None:
        """A file's content, at most so much of it."""
        place = self.resolve(path)
        if place is None:
            return None
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(min(max_bytes, _MAX_READ_BYTES))
        except OSError:
            return None
        finally:
            os.close(fd)

    def text(self, path: str) -> str:
        """The same as text; "" when it cannot be read."""
        return (self.read(path) or b"").decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted."""
        place = self.resolve(path)
        try:
            return sorted(os.listdir(place)) if place is not None else []
        except OSError:
            return []


def _parts(path: str) -> list[str]:
    """Its names, the first last."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]
