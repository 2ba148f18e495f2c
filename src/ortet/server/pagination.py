"""Sorts sessions and finds page positions in the sorted list.

A cursor holds the sort key of a session, not an index. It stays valid, and repeats nothing, while
sessions change places.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import msgspec

from ortet.backends.base import Catalog
from ortet.errors import Invalid
from ortet.sessions.table import SessionRow, last_active

# Pages of lists, with cursors that stay valid while others append.

_Item = TypeVar("_Item")
_Other = TypeVar("_Other")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[
    str, msgspec.Meta(max_length=4000, description="`next` of the page before this one.")
]


class Page(msgspec.Struct, Generic[_Item], frozen=True):
    """A part of a list. `next`: the cursor of the next page, or null if there is none."""

    items: list[_Item]
    next: str | None = None

    def map_items(self, convert: Callable[[_Item], _Other]) -> Page[_Other]:
        return Page([convert(item) for item in self.items], self.next)


class Paged(msgspec.Struct, frozen=True):
    """`limit`: the maximum number of entries. `after`: the `next` of the previous page."""

    limit: Limit = 100
    after: Cursor | None = None


def encode_cursor(*parts: object) -> str:
    """Return an opaque cursor that holds `parts`. Clients must not rely on its content."""
    text = "\n".join(map(str, parts))
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).rstrip(b"=").decode()


def decode_cursor(text: str, count: int) -> list[str]:
    """Return the `count` parts that `encode_cursor` was given.

    Raises:
        Invalid: `text` is not a cursor with that many parts.
    """
    try:
        raw = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
        parts = raw.decode("utf-8", "surrogatepass").split("\n", count - 1)
    except (UnicodeError, binascii.Error, ValueError) as error:
        raise _bad_cursor() from error
    if len(parts) != count:
        raise _bad_cursor()
    return parts


def cursor_number(part: str) -> int:
    """Return a number of a decoded cursor, or raise Invalid."""
    if not (part.isascii() and part.isdigit() and len(part) < 19):
        raise _bad_cursor()
    return int(part)


def paginate(items: Sequence[_Item], ask: Paged, key: Callable[[_Item], object]) -> Page[_Item]:
    """Return the page of `items` that `ask` selects.

    The page starts after the item whose `key` the cursor names. If that item is gone, the page
    starts at its old index.
    """
    start = 0
    if ask.after is not None:
        place, name = decode_cursor(ask.after, 2)
        start = cursor_number(place)
        behind = (n for n, item in enumerate(items, 1) if str(key(item)) == name)
        start = next(behind, start)
    page = list(items[start : start + ask.limit])
    more = start + len(page) < len(items)
    return Page(page, encode_cursor(start + len(page), key(page[-1])) if page and more else None)


def _bad_cursor() -> Invalid:
    return Invalid("bad_cursor", "`after` is not a cursor of this list: begin without it")


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
