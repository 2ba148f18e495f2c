"""The recorded surroundings of a session: as it knows them now, and as a commit holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet.codec import decode
from ortet.graph.records import Journal
from ortet.ids import Oid
from ortet.journal.environment import Environment, compose
from ortet.journal.line import Line
from ortet.journal.mind import Mind

if TYPE_CHECKING:
    from ortet.session.sessions import Sessions
    from ortet.session.view import View


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
    line = Line(hub.catalog, hub.objects, sessions.chain, timeline="", base=journal)
    return compose(core.environment, line.events)
