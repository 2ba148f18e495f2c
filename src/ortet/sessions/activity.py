"""When sessions last did something: told of many at once, from rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet.backends.base import Catalog
from ortet.errors import Corrupt
from ortet.journal.events import header_time
from ortet.sessions.table import SessionRow

_SINGLE_LOOKUP_LIMIT = 200
"""Branches that are asked for one by one; where there are more, all are read in a row."""


def last_active(catalog: Catalog, rows: Sequence[SessionRow]) -> dict[str, int]:
    """By id: the time of its last event, of the last move of its branch, or when it began."""
    moved = dict(_branch_move_times(catalog, [row.branch for row in rows]))
    heads = catalog.last_heads([row.timeline for row in rows])
    return {
        row.id: max(row.created, _time(head), moved.get(row.branch, 0))
        for row, head in zip(rows, heads, strict=True)
    }


def _time(head: bytes) -> int:
    try:
        return header_time(head)
    except Corrupt:  # which `verify` tells; others are listed all the same
        return 0


def _branch_move_times(catalog: Catalog, branches: Sequence[str]) -> Iterator[tuple[str, int]]:
    if len(branches) <= _SINGLE_LOOKUP_LIMIT:
        for branch in branches:
            if (head := catalog.head(f"branch:{branch}")) is not None:
                yield branch, head.time
        return
    after = ""
    while page := catalog.heads("branch:", after):
        yield from ((head.name.removeprefix("branch:"), head.time) for head in page)
        after = page[-1].name
