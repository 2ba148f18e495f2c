"""Sorts sessions and finds page positions in the sorted list.

A cursor holds the sort key of a session, not an index. It stays valid, and repeats nothing, while
sessions change places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from ortet.backends.base import Catalog
from ortet.errors import Invalid
from ortet.server.paging import cursor_number, decode_cursor, encode_cursor
from ortet.sessions.activity import last_active
from ortet.sessions.table import SessionRow

Sort = Literal["activity", "created", "name"]
"""Sort order: last activity first, newest first, or by name."""

_NS_PER_SECOND = 1_000_000_000


Key = tuple[int, int, str, str]
"""Sort key: negated time, length of the name, name, id.

The name parts order sessions of the same moment. The key is a plain tuple because lists may have
tens of thousands of items.
"""


class SortedSessions(NamedTuple):
    """Sessions in their sort order.

    `times` holds the time that each session id is sorted by; it is empty if the order is by name.
    """

    sort: Sort
    rows: list[SessionRow]
    times: dict[str, int]

    @property
    def activity_times(self) -> dict[str, int]:
        """Time of the last activity by session id; empty if sorted by something else."""
        return self.times if self.sort == "activity" else {}

    def key(self, row: SessionRow) -> Key:
        """Return the sort key of a session."""
        if self.sort == "name":
            return 0, 0, row.name.casefold(), row.id
        return -self.times[row.id], len(row.name), row.name, row.id

    def filter_ids(self, ids: Collection[str]) -> SortedSessions:
        """Return only the sessions with these ids, in the same order."""
        return self._replace(rows=[row for row in self.rows if row.id in ids])

    def index_after(self, cursor_text: str) -> int:
        """Return the index of the first session after the cursor."""
        return bisect_right(self.rows, _parse_cursor_key(cursor_text, self.sort), key=self.key)

    def index_before(self, cursor_text: str) -> int:
        """Return the index of the first session that is not before the cursor."""
        return bisect_left(self.rows, _parse_cursor_key(cursor_text, self.sort), key=self.key)

    def cursor(self, index: int) -> str:
        """Return the cursor of the session at `index`."""
        time, length, name, id_ = self.key(self.rows[index])
        return encode_cursor(self.sort, *divmod(-time, _NS_PER_SECOND), length, id_, name)


def sort_sessions(catalog: Catalog, rows: Sequence[SessionRow], sort: Sort) -> SortedSessions:
    """Return the sessions in the given order."""
    if sort == "name":
        line = SortedSessions(sort, list(rows), {})
        line.rows.sort(key=line.key)
        return line
    active = sort == "activity"
    times = last_active(catalog, rows) if active else {row.id: row.created for row in rows}
    line = SortedSessions(sort, sorted(rows, key=lambda row: -times[row.id]), times)
    _sort_equal_times(line)
    return line


def _sort_equal_times(sessions: SortedSessions) -> None:
    """Sort sessions with equal times by the full key. Most sessions never need it."""
    rows, times, start = sessions.rows, sessions.times, 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or times[rows[end].id] != times[rows[start].id]:
            if end - start > 1:
                rows[start:end] = sorted(rows[start:end], key=sessions.key)
            start = end


def _parse_cursor_key(cursor_text: str, sort: Sort) -> Key:
    kind, seconds, rest, length, id_, name = decode_cursor(cursor_text, 6)
    if kind != sort:
        raise Invalid("bad_cursor", f"this cursor is not of a list by {sort}: begin without it")
    time = cursor_number(seconds) * _NS_PER_SECOND + cursor_number(rest)
    return -time, cursor_number(length), name, id_
