"""Deletes stored browser states that nothing refers to, as part of a sweep.

This is a module of its own because a browser state is no part of any session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ortet._util.codec import decode
from ortet.backends.base import RowChange
from ortet.errors import Conflict
from ortet.history.records import EventHeader
from ortet.hub.governance.rewrite_objects import reachable_journals
from ortet.journal.segments import iter_segments, unseal
from ortet.journal.state.records import BROWSER, BrowserState
from ortet.sessions.manager import SessionManager
from ortet.sessions.table import ARCHIVED
from ortet.vault.vault import BROWSER_PREFIX
from ortet.vault.vault import VAULT_ROW_KIND as VAULT


def drop_unused_browser_states(sessions: SessionManager) -> None:
    """Drop browser states that no reachable commit, reflog entry or session refers to.

    States of a family with an archived session stay, because its events are in the archive.
    """
    catalog = sessions.store.catalog
    states = {row.key: row.version for row in sessions.store.vault.sealed_rows(BROWSER_PREFIX)}
    used = set(_referenced_states(sessions)) if states else set[str]()
    away = {row.family for row in sessions.all() if row.status == ARCHIVED}
    kept = {row.id for row in sessions.all() if row.family in away}
    gone = [
        RowChange(VAULT, name, None, expect=version)
        for name, version in states.items()
        if name not in used and name.split("/")[1] not in kept
    ]
    if gone:
        with suppress(Conflict):  # a state was stored again concurrently; the next sweep retries
            catalog.move([], verb="vault", detail="sweep", rows=gone)
            catalog.scrub()


def _referenced_states(sessions: SessionManager) -> Iterator[str]:
    """Iterate over the browser states that events refer to."""
    store, seen = sessions.store, set[bytes]()
    for journal in reachable_journals(sessions):
        for oid, segment in iter_segments(store.objects, journal.segment):
            if oid in seen:
                break
            seen.add(oid)
            if any(decode(EventHeader, head).kind == "browser" for head in segment.heads):
                for row in unseal(store.objects, segment):
                    event = sessions.services.chain.read(row, segment.timeline.hex())
                    yield event.data.get("storage", "")
    for one in sessions.all():
        if one.status != ARCHIVED:
            line = sessions.services.load(one).line
            yield from (e.data.get("storage", "") for e in line.events(line.base.seq))
        if (now := store.catalog.row(BROWSER, one.id)) is not None:
            yield decode(BrowserState, now.value).storage
