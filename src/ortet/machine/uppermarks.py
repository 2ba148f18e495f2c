"""What the kernel notes on files of an upper directory, and the ignore file a user keeps there."""

from __future__ import annotations

import errno
import os
import stat

from ortet.machine.capture import open_quietly
from ortet.machine.rules import FILE

_RULES_MOST = 1 << 20


def read_marks(fd: int, prefix: str) -> tuple[bool, bytes, bool]:
    """Of a directory: is it opaque, its redirect, and has it any xattrs at all."""
    names = os.listxattr(fd)
    opaque, redirect = prefix + "opaque", prefix + "redirect"
    return (
        opaque in names and os.getxattr(fd, opaque) == b"y",
        os.getxattr(fd, redirect) if redirect in names else b"",
        bool(names),
    )


def metacopy(place: bytes, prefix: str) -> bytes | None:
    """Of a file without content of its own: its redirect; None: it has content."""
    if _attribute(place, prefix + "metacopy") is None:
        return None
    return _attribute(place, prefix + "redirect") or b""


def read_rules(fd: int, below: bytes | None) -> bytes | None:
    """The text of a directory's ignore file; `below` is what shows where none lies here."""
    try:
        mode = os.stat(FILE, dir_fd=fd, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            return None
        own = open_quietly(FILE, fd)
    except FileNotFoundError:
        return below
    except OSError:
        return None
    try:
        return os.read(own, _RULES_MOST)
    finally:
        os.close(own)


def _attribute(place: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(place, name, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise
