"""A fast read-only view of the names in an embedded catalog. Needs no hub and no lock.

A module of its own, because shell completion must not import the catalog.
"""

from __future__ import annotations

import os

import apsw

_BUSY_TIMEOUT_MS = 50  # for a process that checkpoints the log
_HEADS = "SELECT name, time FROM heads WHERE name > ?1 AND name < ?2 ORDER BY time DESC LIMIT ?3"
_LAST = "SELECT verb, detail FROM ops WHERE name = ? ORDER BY seq DESC LIMIT 1"
_COMMITS = """SELECT new, detail FROM ops
    WHERE name = ? AND new IS NOT NULL AND verb IN ('commit', 'merge') ORDER BY seq DESC LIMIT ?"""
_KEYS = "SELECT key FROM records WHERE kind = ? ORDER BY key LIMIT ?"


class CatalogPeek:
    """Reads names from a catalog. Raises SQLite errors if the store is missing or unreadable."""

    def __init__(self, store: str) -> None:
        place = os.path.join(store, "catalog.db")
        self._db = apsw.Connection(place, flags=apsw.SQLITE_OPEN_READONLY)
        self._db.set_busy_timeout(_BUSY_TIMEOUT_MS)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def heads(self, kind: str, limit: int) -> list[tuple[str, str]]:
        """Return branches or tags, last moved first, each with its last commit message.

        A head whose last operation is not a commit or merge has `kind` instead of a message.
        """
        records = list(self._db.execute(_HEADS, (f"{kind}:", f"{kind};", limit)))
        return [(name[len(kind) + 1 :], self._last_message(name) or kind) for name, _ in records]

    def commits(self, branch: str, limit: int) -> list[tuple[str, str]]:
        """Return ids and messages of the commits to a branch, newest first."""
        rows = self._db.execute(_COMMITS, (f"branch:{branch}", limit))
        return [(new.hex(), detail) for new, detail in rows]

    def keys(self, kind: str, limit: int) -> list[str]:
        """Return the keys of the rows of a kind."""
        return [key for (key,) in self._db.execute(_KEYS, (kind, limit))]

    def _last_message(self, name: str) -> str:
        rows = self._db.execute(_LAST, (name,))
        return next((detail for verb, detail in rows if verb in ("commit", "merge")), "")
