"""What a restore of a mind leaves behind, and cannot undo or give back: events that it will not
know of, deeds that were done since, and secrets that its commands, tokens and variables name and
that are not to be had here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.errors import NotFound, OrtetError, Refused
from ortet.history.records import Journal
from ortet.ids import Oid
from ortet.journal.environment import Environment
from ortet.journal.event_log import NOTHING
from ortet.journal.events import Event
from ortet.journal.replay.divergence import part
from ortet.journal.state.records import Effect
from ortet.journal.state.state import Mind
from ortet.machines.secrets.names import is_secret
from ortet.sessions.actions.effects import done_since
from ortet.sessions.history.participants import is_quiet, line_of
from ortet.sessions.results import Lapsed
from ortet.sessions.writing.inbox import waiting

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import Sessions
    from ortet.sessions.reader import View
    from ortet.sessions.table import SessionRow


def forgotten(view: View, commit: Oid) -> int:
    """How many events a session would not know of any more at a commit of it. That it was opened,
    let go or looked at is not counted: nobody said or did that."""
    base = view.line.base
    return _left(view.hub._minds(), base, commit, view.events(base.seq))


def forgotten_on(sessions: Sessions, branch: str, commit: Oid) -> int:
    """The same of the session that works on a branch, if one does."""
    row = sessions.roll.of_branch(branch)
    if row is None:
        return 0
    line, _ = line_of(sessions, row)
    new = (*line.events(line.base.seq), *waiting(sessions.hub.catalog, row.id))
    return _left(sessions, line.base, commit, new)


def forgotten_since(sessions: Sessions, was: Oid, commit: Oid) -> int:
    """The same, where a commit holds all that it knew."""
    return _left(sessions, _journal(sessions.hub, was) or NOTHING, commit, ())


def _left(sessions: Sessions, old: Journal, commit: Oid, new: Iterable[Event]) -> int:
    objects = sessions.hub.objects
    stretch = part(objects, old, _journal(sessions.hub, commit) or NOTHING)[0]
    left = sum(not is_quiet(event) for event in stretch.newest(objects, sessions.chain))
    return left + sum(not is_quiet(event) for event in new)


def deeds_since(hub: Hub, row: SessionRow, commit: Oid) -> list[Effect]:
    """What a session has done since a commit of it; a restore does not undo it."""
    return done_since(hub.catalog, row, seq_of(hub, commit))


def seq_of(hub: Hub, commit: Oid) -> int:
    """The last event that a commit holds; 0 without a mind."""
    journal = _journal(hub, commit)
    return journal.seq if journal is not None else 0


def lapsed(sessions: Sessions, commit: Oid, then: Environment | None) -> list[Lapsed]:
    """Secrets that a commit, and what surrounded it then, refer to and that this host cannot give
    now, by name."""
    hub, journal = sessions.hub, _journal(sessions.hub, commit)
    if journal is None:
        return []
    mind = Mind.load(sessions.maps, hub.objects, journal.fold)
    used: dict[str, list[str]] = {name: ["run"] for name in mind.core.secrets}
    for token in mind.tokens:
        used.setdefault(token.vault, []).append(f"token {token.service}")
    found = [one for name in used if (one := _looked_up(hub, name, used[name])) is not None]
    for name, variable in then.variables.items() if then is not None else ():
        if variable.ref and name not in used and name not in hub.environ:
            found.append(Lapsed(name, "missing", [f"variable {name}"]))
    return sorted(found, key=lambda one: one.name)


def _looked_up(hub: Hub, name: str, used: list[str]) -> Lapsed | None:
    try:
        hub.vault.get(name)
    except NotFound:
        if is_secret(name, hub.environ.get(name, "")):  # which a command is given as well
            return None
        return Lapsed(name, "missing", used)
    except Refused as error:
        if error.kind == "secret_expired":
            return Lapsed(name, "expired", used, error.details["expires"])
        return Lapsed(name, "no_key", used)
    except OrtetError:  # damaged, or no package to read it with
        return Lapsed(name, "missing", used)
    return None


def _journal(hub: Hub, commit: Oid) -> Journal | None:
    state = hub.history.state(commit)
    return decode(Journal, hub.objects.get(Oid(state.journal))) if state.journal else None
