"""Where the commits of a session lie in its journal, so that any of its minds is near at hand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

from ortet._util.codec import decode
from ortet.history.records import Journal
from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.journal.event_log import NOTHING, Line
from ortet.sessions.reader import View

_SESSIONS = 8
"""That are remembered; 10 000 commits of one are some 5 MB."""


class Seals:
    """Of one server. What commits hold never changes: only new ones are read."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], list[tuple[Oid, Journal]]] = OrderedDict()
        self._lock = Lock()

    def before(self, view: View, tenant: str, seq: int) -> Iterator[tuple[Oid, Journal]]:
        """Commits on the session's line that end at an event or before it, the newest first."""
        line = self._line(view, tenant)
        found = [one for one in line if 0 < one[1].seq <= seq]
        # a mind that was restored alone lies before that of its parent
        for oid, journal in sorted(found, key=lambda one: -one[1].seq):
            if goes_through(view.line, view.hub, journal):
                yield oid, journal

    def _line(self, view: View, tenant: str) -> list[tuple[Oid, Journal]]:
        """Of the commits of its branch, along first parents, the oldest first."""
        head = view.hub.catalog.head(f"branch:{view.row.branch}")
        if head is None:
            return []
        with self._lock:
            known = self._known.get((tenant, view.id), [])
            self._known[tenant, view.id] = known
            self._known.move_to_end((tenant, view.id))
            while len(self._known) > _SESSIONS:
                self._known.popitem(last=False)
            at = {oid: n for n, (oid, _) in enumerate(known)}
            fresh: list[tuple[Oid, Journal]] = []
            kept = 0
            for oid in view.hub.history.line(head.oid):
                if oid in at:
                    kept = at[oid] + 1
                    break
                fresh.append((oid, journal_at(view.hub, oid)))
            known[kept:] = reversed(fresh)
            return list(known)


def journal_at(hub: Hub, commit: Oid) -> Journal:
    state = hub.history.state(commit)
    return decode(Journal, hub.objects.get(Oid(state.journal))) if state.journal else NOTHING


def goes_through(line: Line, hub: Hub, journal: Journal) -> bool:
    """Whether a line has been where a journal ends: what was restored away is on no line."""
    row = next(iter(line.rows(journal.seq - 1, journal.seq)), None) if journal.seq else None
    return row is not None and hub._minds().chain.tip(row).hash == journal.hash
