"""Reads the marks of overlayfs on files of an upper directory, and its ignore files."""

from __future__ import annotations

import errno
import os
import stat

from msgspec.structs import replace

from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.machines.base import Loss
from ortet.machines.capture.entry import clamped_mtime, open_noatime
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules

_MAX_IGNORE_FILE_BYTES = 1 << 20


def read_marks(fd: int, prefix: str) -> tuple[bool, bytes, bool]:
    """Return, for a directory: is it opaque, its redirect, and has it any xattrs."""
    names = os.listxattr(fd)
    opaque, redirect = prefix + "opaque", prefix + "redirect"
    return (
        opaque in names and os.getxattr(fd, opaque) == b"y",
        os.getxattr(fd, redirect) if redirect in names else b"",
        bool(names),
    )


def metacopy_redirect(place: bytes, prefix: str) -> bytes | None:
    """Return the redirect of a file without its own content, or None if it has content."""
    if _attribute(place, prefix + "metacopy") is None:
        return None
    return _attribute(place, prefix + "redirect") or b""


def with_metadata(
    below: TreeEntry | None, st: os.stat_result, *, path: bytes, xattrs: bytes
) -> TreeEntry:
    """Return the entry of a lower file with the name and metadata of the upper one."""
    if below is None or not below.is_file:
        raise Corrupt(
            "bad_layer",
            f"{os.fsdecode(path)} rests on a file that its layers do not hold: restore a commit",
        )
    return replace(
        below,
        name=path.rpartition(b"/")[2],
        mode=st.st_mode,
        mtime=clamped_mtime(st),
        uid=st.st_uid,
        gid=st.st_gid,
        xattrs=xattrs,
    )


def read_rules(fd: int, below: bytes | None) -> bytes | None:
    """Return the text of a directory's ignore file.

    `below` is the text of the lower file, which counts if the upper directory has none.
    """
    try:
        mode = os.stat(IGNORE_FILE, dir_fd=fd, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            return None
        own = open_noatime(IGNORE_FILE, fd)
    except FileNotFoundError:
        return below
    except OSError:
        return None
    try:
        return os.read(own, _MAX_IGNORE_FILE_BYTES)
    finally:
        os.close(own)


def oversize_loss(rules: IgnoreRules, path: bytes, st: os.stat_result) -> Loss | None:
    """Return the loss for a file that a size rule leaves out, or None."""
    if rules.is_empty or not stat.S_ISREG(st.st_mode):
        return None
    limit = rules.size_limit(path)
    if limit is None or st.st_size <= limit:
        return None
    why = f"its {st.st_size} bytes are more than the {limit} that {os.fsdecode(IGNORE_FILE)} allows"
    return Loss(os.fsdecode(path), "size", why)


def _attribute(place: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(place, name, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise
