"""Finds the commits of a session by their position in the journal.

A replay starts from the state of the nearest commit instead of the first event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

from ortet._util.codec import decode
from ortet.history.records import JournalHead
from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.sessions.reader import SessionReader

_MAX_CACHED_SESSIONS = 8
"""Maximum number of cached sessions. 10 000 commits of one take about 5 MB."""


class CommitJournalIndex:
    """The journal positions of commits, cached for one server. Only new commits are read."""

    def __init__(self) -> None:
        self._commits: OrderedDict[tuple[str, str], list[tuple[Oid, JournalHead]]] = OrderedDict()
        self._lock = Lock()

    def commits_before(
        self, view: SessionReader, tenant: str, seq: int
    ) -> Iterator[tuple[Oid, JournalHead]]:
        """Yield commits on the session's timeline that end at or before an event, newest first."""
        line = self._branch_commits(view, tenant)
        found = [one for one in line if 0 < one[1].seq <= seq]
        # After a restore of the state alone, a commit may end before its parent does.
        for oid, journal in sorted(found, key=lambda one: -one[1].seq):
            if passes_through(view.event_log, view.hub, journal):
                yield oid, journal

    def _branch_commits(self, view: SessionReader, tenant: str) -> list[tuple[Oid, JournalHead]]:
        """Return the commits of the branch along first parents, oldest first."""
        head = view.hub.catalog.head(f"branch:{view.row.branch}")
        if head is None:
            return []
        with self._lock:
            known = self._commits.get((tenant, view.id), [])
            self._commits[tenant, view.id] = known
            self._commits.move_to_end((tenant, view.id))
            while len(self._commits) > _MAX_CACHED_SESSIONS:
                self._commits.popitem(last=False)
            at = {oid: n for n, (oid, _) in enumerate(known)}
            fresh: list[tuple[Oid, JournalHead]] = []
            kept = 0
            for oid in view.hub.history.first_parents(head.oid):
                if oid in at:
                    kept = at[oid] + 1
                    break
                fresh.append((oid, journal_at(view.hub, oid)))
            known[kept:] = reversed(fresh)
            return list(known)


def journal_at(hub: Hub, commit: Oid) -> JournalHead:
    """Return the position in the journal at which a commit was made."""
    state = hub.history.state(commit)
    return (
        decode(JournalHead, hub.objects.get(Oid(state.journal))) if state.journal else EMPTY_JOURNAL
    )


def passes_through(log: EventLog, hub: Hub, journal: JournalHead) -> bool:
    """Return True if the log contains the end of a journal.

    Events that a restore left are not in it.
    """
    row = next(iter(log.rows(journal.seq - 1, journal.seq)), None) if journal.seq else None
    return row is not None and hub._session_manager().chain.tip(row).hash == journal.hash
