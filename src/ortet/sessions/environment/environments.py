"""The recorded surroundings of a session: as it knows them now, and as a commit holds them."""

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
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader


def recorded_environments(view: SessionReader) -> tuple[Environment | None, Environment | None]:
    """At the beginning, and now; None where nobody has looked."""
    core = view.state.core
    return environment_from_events(core.environment_first, view.events), environment_from_events(
        core.environment, view.events
    )


def environment_at_commit(sessions: SessionManager, commit: Oid) -> Environment | None:
    """The surroundings a commit was made in, as its own events tell them."""
    hub = sessions.hub
    state = hub.history.state(commit)
    if not state.journal:
        return None
    journal = decode(JournalHead, hub.objects.get(Oid(state.journal)))
    core = SessionState.load(sessions.maps, hub.objects, journal.fold).core
    wanted, found = set(core.environment.values()), dict[int, Event]()
    for _, segment in iter_segments(hub.objects, journal.segment):
        if len(found) == len(wanted):
            break
        for row in unseal(hub.objects, segment):
            if row.seq in wanted:
                found[row.seq] = sessions.chain.read(row)
    return environment_from_events(
        core.environment, lambda _, seq: [found[seq]] if seq in found else []
    )
