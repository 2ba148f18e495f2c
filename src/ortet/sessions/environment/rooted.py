"""Reads small files of a machine from outside, resolving symbolic links inside its root."""

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
    """The workspace to probe.

    `path` is the workspace on the host, or "". `run` is set if commands run in another view of the
    system than this process.
    """

    path: str = ""
    run: RunCommand | None = None
    left_out: str = ""  # directory of the workspace whose changes are our own

    @property
    def root(self) -> str:
        """Return the root of the machine as the host sees it; "" for the host's own."""
        found = _MACHINE.match(self.path)
        return found.group() if found else ""

    @property
    def workspace_path(self) -> str:
        """Return the path of the workspace as the machine sees it."""
        return self.path.removeprefix(self.root)


class RootedReader:
    """Reads files below `root`; "" if the machine sees the files of the host.

    No method raises for a path that is missing, not a file, or not readable.
    """

    def __init__(self, root: str = "") -> None:
        self.root = root

    def resolve(self, path: str) -> str | None:
        """Return the path on the host of an absolute path of the machine, or None.

        Links are resolved step by step: the kernel would resolve an absolute link from the host's
        root.
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
            except OSError:  # not a link
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
        """Return the content of a file, at most `max_bytes`, or None."""
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
        """Return the content of a file as text, or ""."""
        return (self.read(path) or b"").decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        place = self.resolve(path)
        try:
            return sorted(os.listdir(place)) if place is not None else []
        except OSError:
            return []


def _parts(path: str) -> list[str]:
    """Return the parts of a path in reverse order."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]
