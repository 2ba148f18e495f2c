"""A look at the names in an embedded catalog, for who must be quick: no hub, no lock, no write."""

from __future__ import annotations

import os

import apsw

_BUSY_TIMEOUT_MS = 50  # milliseconds for one who just moves the log
_HEADS = "SELECT name, time FROM heads WHERE name > ?1 AND name < ?2 ORDER BY time DESC LIMIT ?3"
_LAST = "SELECT verb, detail FROM ops WHERE name = ? ORDER BY seq DESC LIMIT 1"
_COMMITS = """SELECT new, detail FROM ops
    WHERE name = ? AND new IS NOT NULL AND verb IN ('commit', 'merge') ORDER BY seq DESC LIMIT ?"""
_KEYS = "SELECT key FROM records WHERE kind = ? ORDER BY key LIMIT ?"


class CatalogPeek:
    """What there is now. A store that is not there, or cannot be read, is an error of SQLite."""

    def __init__(self, store: str) -> None:
        place = os.path.join(store, "catalog.db")
        self._db = apsw.Connection(place, flags=apsw.SQLITE_OPEN_READONLY)
        self._db.set_busy_timeout(_BUSY_TIMEOUT_MS)

    def close(self) -> None:
        self._db.close()

    def heads(self, kind: str, limit: int) -> list[tuple[str, str]]:
        """Branches or tags, the last moved first: the name, and the message of what was just
        committed there, else what it is."""
        found = list(self._db.execute(_HEADS, (f"{kind}:", f"{kind};", limit)))
        return [(name[len(kind) + 1 :], self._last_message(name) or kind) for name, _ in found]

    def commits(self, branch: str, limit: int) -> list[tuple[str, str]]:
        """Ids and messages of what was committed to a branch, the newest first."""
        rows = self._db.execute(_COMMITS, (f"branch:{branch}", limit))
        return [(new.hex(), detail) for new, detail in rows]

    def keys(self, kind: str, limit: int) -> list[str]:
        """Of the rows of a kind."""
        return [key for (key,) in self._db.execute(_KEYS, (kind, limit))]

    def _last_message(self, name: str) -> str:
        rows = self._db.execute(_LAST, (name,))
        return next((detail for verb, detail in rows if verb in ("commit", "merge")), "")
