"""Catalog rows that are removed or erased with a session.

They repeat content of its events: external state, turns, swarms, and indexes of adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode
from ortet.backends.base import Catalog, RowChange
from ortet.journal.events import Event
from ortet.journal.state.records import BROWSER
from ortet.sessions.environment.external_state import (
    WINDOW,
    RateLimitRow,
    all_rows,
    collaboration_rows,
)
from ortet.sessions.swarm_api import attempt_rows, swarm_rows
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.idempotent_turns import KIND as TURNS
from ortet.vault.vault import BROWSER_PREFIX
from ortet.vault.vault import VAULT_ROW_KIND as VAULT

if TYPE_CHECKING:
    from ortet.sessions.context import SessionServices

DERIVED = "derived"
"""Row kind by session id: an adapter's index of the journal, which can be rebuilt.

It holds positions and no content.
"""


def adapter_row_kind(timeline: str) -> str:
    """Return the kind of the rows that list the row kinds of an adapter for a timeline.

    The rows of these kinds are made from events of the timeline and removed with it.
    """
    return f"beside/{timeline}"


def drop_adapter_rows(catalog: Catalog, timeline: str) -> None:
    while kinds := catalog.rows(adapter_row_kind(timeline)):
        for one in kinds:
            while page := catalog.rows(one.key):
                gone = [RowChange(one.key, row.key, None) for row in page]
                catalog.move([], verb="index", actor="", rows=gone)
            catalog.drop_row(one.kind, one.key)


def rows_repeating_event(
    sessions: SessionServices, row: SessionRow, event: Event
) -> Iterator[tuple[str, str]]:
    """Iterate over (kind, key) of rows and vault entries that repeat the content of an event.

    Forks share the event, so their rows are included.
    """
    data, catalog = event.data, sessions.store.catalog
    if event.erased or event.kind not in ("collaboration", "window", "browser"):
        return
    if event.kind == "window":
        key = f"{row.agent}/{data['service']}"
        known = catalog.row(WINDOW, key)
        if known is not None and decode(RateLimitRow, known.value).timeline == event.timeline:
            yield WINDOW, key
        return
    for one in sessions.all():
        if one.family == row.family and event.kind == "browser":
            yield BROWSER, one.id
        elif one.family == row.family:
            yield collaboration_rows(one.id), data["name"]
    if data.get("storage"):
        yield VAULT, data["storage"]


def removal_row_changes(sessions: SessionServices, row: SessionRow) -> list[RowChange]:
    """Return the changes that remove the rows of a session.

    Rate limits belong to the agent and stay. Browser states that a fork refers to stay too.
    """
    store = sessions.store
    kind = collaboration_rows(row.id)
    gone = [RowChange(kind, name, None) for name, _ in all_rows(store.catalog, kind)]
    gone += [RowChange(kind, row.id, None) for kind in (BROWSER, TURNS, DERIVED)]
    states = set(store.vault.names(f"{BROWSER_PREFIX}{row.id}/"))
    if states:
        states -= set(_states_of_forks(sessions, row))
    for name, swarm in all_rows(store.catalog, swarm_rows(row.id)):
        kind = attempt_rows(msgspec.msgpack.decode(swarm)["id"])
        gone += [RowChange(kind, key, None) for key, _ in all_rows(store.catalog, kind)]
        gone.append(RowChange(swarm_rows(row.id), name, None))
    return gone + [RowChange(VAULT, name, None) for name in sorted(states)]


def _states_of_forks(sessions: SessionServices, row: SessionRow) -> Iterator[str]:
    for other in sessions.all():
        if other.family == row.family and other.id != row.id:
            for event in sessions.load(other).line.events():
                if event.kind == "browser":
                    yield event.data.get("storage", "")
