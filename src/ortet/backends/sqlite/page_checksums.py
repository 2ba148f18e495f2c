"""Checksums of the pages of our SQLite files.

SQLite does not notice that a stored value has changed on the disk. With the VFS `cksumvfs`, which
comes with apsw, each page ends with a checksum of its content. SQLite checks the page whenever it
is read, from the file or from the log. A file gets checksums when it is created, because the space
for them is part of its layout. Every writer of such a file must have the VFS.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

import apsw

from ortet.errors import Unsupported

_SUFFIXES = (".so", ".dylib", ".dll", "")
_RESERVED_BYTES = 8
"""Bytes at the end of each page. The VFS keeps checksums in files with this number."""

_SMALLEST_PAGE = 512
"""The size of every SQLite file is a multiple of this number."""

_LOAD = Lock()
_loaded: bool | None = None


def load_checksums() -> bool:
    """Load the VFS into this process once. Return False if this apsw does not have it."""
    global _loaded
    with _LOAD:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> bool:
    base = os.path.join(os.path.dirname(apsw.__file__), "sqlite_extra_binaries", "cksumvfs")
    file = next((base + suffix for suffix in _SUFFIXES if os.path.isfile(base + suffix)), "")
    if not file:
        return False
    try:
        connection = apsw.Connection(":memory:")
        try:
            connection.enable_load_extension(True)
            connection.load_extension(file)
        finally:
            connection.close()
    except (apsw.Error, AttributeError):  # apsw was built without extensions
        return False
    return True


def reserve_checksums(connection: apsw.Connection) -> None:
    """Make room for checksums in a file that has no content yet. An existing file stays as is."""
    import ctypes  # noqa: PLC0415 - only needed when a file is created

    number = ctypes.c_int(_RESERVED_BYTES)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(number))


def no_checksums() -> Unsupported:
    """Return the error for a file whose checksums this host cannot write."""
    return Unsupported(
        "no_checksums",
        "the catalog has page checksums, and this apsw lacks cksumvfs: install apsw from PyPI",
    )


def is_page_damaged(error: apsw.Error) -> bool:
    """Return True if SQLite has read a page that does not match its checksum."""
    return (
        isinstance(error, apsw.IOError)
        and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
    )


def is_cut(path: Path) -> bool:
    """Return True if a file ends within a page, and there is no log that may complete it.

    SQLite reads the missing end as zeros, without an error and without a look at the checksum.
    """
    log = Path(f"{path}-wal")
    return path.stat().st_size % _SMALLEST_PAGE > 0 and not (log.exists() and log.stat().st_size)
