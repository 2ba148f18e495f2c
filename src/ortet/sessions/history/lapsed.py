"""The losses of a restore of session state.

These are events that the state no longer includes, effects since then, and unavailable secrets that
the commit refers to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ortet._util.codec import decode
from ortet.errors import NotFound, OrtetError, Refused
from ortet.history.records import JournalHead
from ortet.ids import Oid
from ortet.journal.environment import Environment
from ortet.journal.event_log import EMPTY_JOURNAL
from ortet.journal.events import Event
from ortet.journal.replay.divergence import find_divergence
from ortet.journal.state.records import Effect
from ortet.journal.state.state import SessionState
from ortet.machines.secrets.names import is_secret
from ortet.sessions.actions.effects import effects_since
from ortet.sessions.history.participants import is_bookkeeping_event, load_event_log
from ortet.sessions.results import UnavailableSecret
from ortet.sessions.writing.inbox import pending_events

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.table import SessionRow


def count_forgotten_events(view: SessionReader, commit: Oid) -> int:
    """Return the number of events that the state would lose by a restore of a commit.

    Lifecycle events and automatic environment events are not counted.
    """
    base = view.event_log.base
    return _count_left_events(view.hub._session_manager(), base, commit, view.events(base.seq))


def count_forgotten_on_branch(sessions: SessionManager, branch: str, commit: Oid) -> int:
    """Count the lost events of the session on a branch; 0 if there is no session."""
    row = sessions.table.find_by_branch(branch)
    if row is None:
        return 0
    line, _ = load_event_log(sessions, row)
    new = (*line.events(line.base.seq), *pending_events(sessions.hub.catalog, row.id))
    return _count_left_events(sessions, line.base, commit, new)


def count_forgotten_since(sessions: SessionManager, before: Oid, commit: Oid) -> int:
    """Count the lost events from the commit `before` to `commit`."""
    return _count_left_events(sessions, _journal(sessions.hub, before) or EMPTY_JOURNAL, commit, ())


def _count_left_events(
    sessions: SessionManager, old: JournalHead, commit: Oid, new: Iterable[Event]
) -> int:
    objects = sessions.hub.objects
    stretch = find_divergence(objects, old, _journal(sessions.hub, commit) or EMPTY_JOURNAL)[0]
    left = sum(not is_bookkeeping_event(event) for event in stretch.newest(objects, sessions.chain))
    return left + sum(not is_bookkeeping_event(event) for event in new)


def effects_since_commit(hub: Hub, row: SessionRow, commit: Oid) -> list[Effect]:
    """Return the effects of a session since a commit. A restore does not undo them."""
    return effects_since(hub.catalog, row, seq_of(hub, commit))


def seq_of(hub: Hub, commit: Oid) -> int:
    """Return the number of the last event in a commit; 0 if it holds no session state."""
    journal = _journal(hub, commit)
    return journal.seq if journal is not None else 0


def unavailable_secrets(
    sessions: SessionManager, commit: Oid, environment: Environment | None
) -> list[UnavailableSecret]:
    """Return secrets that a commit and its environment refer to and this host cannot provide."""
    hub, journal = sessions.hub, _journal(sessions.hub, commit)
    if journal is None:
        return []
    mind = SessionState.load(sessions.maps, hub.objects, journal.fold)
    used: dict[str, list[str]] = {name: ["run"] for name in mind.core.secrets}
    for token in mind.tokens:
        used.setdefault(token.vault, []).append(f"token {token.service}")
    found = [one for name in used if (one := _check_secret(hub, name, used[name])) is not None]
    for name, variable in environment.variables.items() if environment is not None else ():
        if variable.ref and name not in used and name not in hub.environ:
            found.append(UnavailableSecret(name, "missing", [f"variable {name}"]))
    return sorted(found, key=lambda one: one.name)


def _check_secret(hub: Hub, name: str, used: list[str]) -> UnavailableSecret | None:
    try:
        hub.vault.get(name)
    except NotFound:
        # commands get secrets of the environment as well
        if is_secret(name, hub.environ.get(name, "")):
            return None
        return UnavailableSecret(name, "missing", used)
    except Refused as error:
        if error.kind == "secret_expired":
            return UnavailableSecret(name, "expired", used, error.details["expires"])
        return UnavailableSecret(name, "no_key", used)
    except OrtetError:  # damaged, or a needed package is missing
        return UnavailableSecret(name, "missing", used)
    return None


def _journal(hub: Hub, commit: Oid) -> JournalHead | None:
    state = hub.history.state(commit)
    return decode(JournalHead, hub.objects.get(Oid(state.journal))) if state.journal else None
