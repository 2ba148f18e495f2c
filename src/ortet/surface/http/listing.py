"""Sessions in the order that is wanted, a part at a time: what changes places meanwhile is neither
told twice behind a cursor, nor does it make that wrong."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from ortet.backend.abc import Catalog
from ortet.errors import Invalid
from ortet.session.activity import last_active
from ortet.session.lifecycle import SessionRow
from ortet.surface.http.paging import cursor, number_of, parts_of

Sort = Literal["activity", "created", "name"]
"""The last that did something first, the newest first, or by name."""

_SECOND = 1_000_000_000


Key = tuple[int, int, str, str]
"""What a list is ordered by: the time, less for later; those of one moment by the length of their
name, then by it and by id. Plain: there may be tens of thousands."""


class Line(NamedTuple):
    """Sessions in order; `touched`, where they are by activity: when each last did something."""

    sort: Sort
    rows: list[SessionRow]
    keys: list[Key]
    touched: dict[str, int]

    def only(self, ids: Collection[str]) -> Line:
        chosen = [n for n, row in enumerate(self.rows) if row.id in ids]
        rows, keys = [self.rows[n] for n in chosen], [self.keys[n] for n in chosen]
        return self._replace(rows=rows, keys=keys)

    def behind(self, place: str) -> int:
        """The index of what follows a cursor."""
        return bisect_right(self.keys, _key_of(place, self.sort))

    def before(self, place: str) -> int:
        """The index of the first that a cursor does not precede."""
        return bisect_left(self.keys, _key_of(place, self.sort))

    def cursor(self, index: int) -> str:
        """Of the session at an index."""
        time, length, name, id_ = self.keys[index]
        return cursor(self.sort, *divmod(-time, _SECOND), length, id_, name)


def in_line(catalog: Catalog, rows: Sequence[SessionRow], sort: Sort) -> Line:
    touched = last_active(catalog, rows) if sort == "activity" else {}
    if sort == "name":
        keys: list[Key] = [(0, 0, row.name.casefold(), row.id) for row in rows]
    else:
        times = touched or {row.id: row.created for row in rows}
        keys = [(-times[row.id], len(row.name), row.name, row.id) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    return Line(sort, [rows[n] for n in order], [keys[n] for n in order], touched)


def _key_of(place: str, sort: Sort) -> Key:
    kind, seconds, rest, length, id_, name = parts_of(place, 6)
    if kind != sort:
        raise Invalid("bad_cursor", f"this cursor is not of a list by {sort}: begin without it")
    time = number_of(seconds) * _SECOND + number_of(rest)
    return -time, number_of(length), name, id_
