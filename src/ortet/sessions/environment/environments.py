"""The recorded surroundings of a session: as it knows them now, and as a commit holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.history.records import Journal
from ortet.ids import Oid
from ortet.journal.environment import Environment, compose
from ortet.journal.events import Event
from ortet.journal.segments import segments, unseal
from ortet.journal.state.state import Mind

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions
    from ortet.sessions.reader import View


def recorded_of(view: View) -> tuple[Environment | None, Environment | None]:
    """At the beginning, and now; None where nobody has looked."""
    core = view.mind.core
    return compose(core.environment_first, view.events), compose(core.environment, view.events)


def recorded_in(sessions: Sessions, commit: Oid) -> Environment | None:
    """The surroundings a commit was made in, as its own events tell them."""
    hub = sessions.hub
    state = hub.history.state(commit)
    if not state.journal:
        return None
    journal = decode(Journal, hub.objects.get(Oid(state.journal)))
    core = Mind.load(sessions.maps, hub.objects, journal.fold).core
    wanted, found = set(core.environment.values()), dict[int, Event]()
    for _, segment in segments(hub.objects, journal.segment):
        if len(found) == len(wanted):
            break
        for row in unseal(hub.objects, segment):
            if row.seq in wanted:
                found[row.seq] = sessions.chain.read(row)
    return compose(core.environment, lambda _, seq: [found[seq]] if seq in found else [])
