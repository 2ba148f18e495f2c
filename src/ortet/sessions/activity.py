"""Last activity of sessions, computed for many at once from catalog rows.

It is a module of its own so that listings need not load sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet.backends.base import Catalog
from ortet.errors import Corrupt
from ortet.journal.events import header_time
from ortet.sessions.table import SessionRow

_SINGLE_LOOKUP_LIMIT = 200
"""Number of branches up to which each is looked up singly. For more, all heads are read."""


def last_active(catalog: Catalog, rows: Sequence[SessionRow]) -> dict[str, int]:
    """Return by session id the latest of its creation, last event and last branch move."""
    moved = dict(_branch_move_times(catalog, [row.branch for row in rows]))
    heads = catalog.last_heads([row.timeline for row in rows])
    return {
        row.id: max(row.created, _time(head), moved.get(row.branch, 0))
        for row, head in zip(rows, heads, strict=True)
    }


def _time(head: bytes) -> int:
    try:
        return header_time(head)
    except Corrupt:  # `verify` reports damage; the listing must still work
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
