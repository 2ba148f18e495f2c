"""The recorded environment of a session: at its start, now, and at a commit.

It is a module of its own because readers, restores and previews use it without a tracker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.history.records import JournalHead
from ortet.ids import Oid
from ortet.journal.environment import Environment, environment_from_events
from ortet.journal.events import Event
from ortet.journal.segments import iter_segments, unseal
from ortet.journal.state.state import SessionState

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext
    from ortet.sessions.services import JournalServices


def recorded_environments(view: SessionContext) -> tuple[Environment | None, Environment | None]:
    """Return the environment at the start of the session and now. None means not recorded."""
    core = view.state.core
    return environment_from_events(core.environment_first, view.events), environment_from_events(
        core.environment, view.events
    )


def environment_at_commit(sessions: JournalServices, commit: Oid) -> Environment | None:
    """Return the environment in which a commit was made, from its own events."""
    store = sessions.store
    state = store.history.state(commit)
    if not state.journal:
        return None
    journal = decode(JournalHead, store.objects.get(Oid(state.journal)))
    core = SessionState.load(sessions.maps, store.objects, journal.fold).core
    wanted, found = set(core.environment.values()), dict[int, Event]()
    for _, segment in iter_segments(store.objects, journal.segment):
        if len(found) == len(wanted):
            break
        for row in unseal(store.objects, segment):
            if row.seq in wanted:
                found[row.seq] = sessions.chain.read(row)
    return environment_from_events(
        core.environment, lambda _, seq: [found[seq]] if seq in found else []
    )
