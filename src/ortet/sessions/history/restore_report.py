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
from ortet.sessions.actions.ledger import FAILED, effect_rows, ledgers_of
from ortet.sessions.environment.environments import environment_at_commit
from ortet.sessions.history.load import is_bookkeeping_event, load_event_log
from ortet.sessions.writing.inbox import pending_events
from ortet.workspaces.results import UnavailableSecret

if TYPE_CHECKING:
    from ortet.sessions.services import JournalServices
    from ortet.sessions.table import SessionRow
    from ortet.store.context import StoreContext


def count_forgotten(
    sessions: JournalServices, row: SessionRow, commit: Oid, since: Oid | None = None
) -> int:
    """Count the events that the state of a session loses by a restore of `commit`.

    Args:
        sessions: the sessions of the store.
        row: the session.
        commit: the commit to restore.
        since: count from this commit; None counts from the present state, as stored.
    """
    if since is not None:
        old = _journal(sessions.store, since) or EMPTY_JOURNAL
        return count_left_events(sessions, old, commit, ())
    line, _ = load_event_log(sessions, row)
    new = (*line.events(line.base.seq), *pending_events(sessions.store.catalog, row.id))
    return count_left_events(sessions, line.base, commit, new)


def unrestorable_since(
    sessions: JournalServices, row: SessionRow, commit: Oid
) -> tuple[list[Effect], list[UnavailableSecret]]:
    """Return the effects since a commit and the secrets that it needs and this host lacks."""
    secrets = unavailable_secrets(sessions, commit, environment_at_commit(sessions, commit))
    return effects_since_commit(sessions, row, commit), secrets


def count_left_events(
    sessions: JournalServices, old: JournalHead, commit: Oid, new: Iterable[Event]
) -> int:
    objects = sessions.store.objects
    stretch = find_divergence(objects, old, _journal(sessions.store, commit) or EMPTY_JOURNAL)[0]
    left = sum(not is_bookkeeping_event(event) for event in stretch.newest(objects, sessions.chain))
    return left + sum(not is_bookkeeping_event(event) for event in new)


def effects_since_commit(sessions: JournalServices, row: SessionRow, commit: Oid) -> list[Effect]:
    """Return the effects of a session that a commit does not know. A restore undoes none of them.

    Effects in the workspace are not included: a restore undoes those.
    """
    store, journal = sessions.store, _journal(sessions.store, commit)
    then = SessionState.load(sessions.maps, store.objects, journal.fold) if journal else None
    known = {effect.id for effect in then.effects} if then is not None else set[str]()
    return [
        one.effect
        for one in effect_rows(store.catalog, ledgers_of(store.catalog, row))
        if one.session == row.id
        and one.effect.id not in known
        and one.effect.state != FAILED
        and one.effect.where != "workspace"
    ]


def seq_of(store: StoreContext, commit: Oid) -> int:
    """Return the number of the last event in a commit; 0 if it holds no session state."""
    journal = _journal(store, commit)
    return journal.seq if journal is not None else 0


def unavailable_secrets(
    sessions: JournalServices, commit: Oid, environment: Environment | None
) -> list[UnavailableSecret]:
    """Return secrets that a commit and its environment refer to and this host cannot provide."""
    store, journal = sessions.store, _journal(sessions.store, commit)
    if journal is None:
        return []
    mind = SessionState.load(sessions.maps, store.objects, journal.fold)
    used: dict[str, list[str]] = {name: ["run"] for name in mind.core.secrets}
    for token in mind.tokens:
        used.setdefault(token.vault, []).append(f"token {token.service}")
    found = [one for name in used if (one := _check_secret(store, name, used[name])) is not None]
    for name, variable in environment.variables.items() if environment is not None else ():
        if variable.ref and name not in used and name not in store.environ:
            found.append(UnavailableSecret(name, "missing", [f"variable {name}"]))
    return sorted(found, key=lambda one: one.name)


def _check_secret(store: StoreContext, name: str, used: list[str]) -> UnavailableSecret | None:
    try:
        store.vault.get(name)
    except NotFound:
        # commands get secrets of the environment as well
        if is_secret(name, store.environ.get(name, "")):
            return None
        return UnavailableSecret(name, "missing", used)
    except Refused as error:
        if error.kind == "secret_expired":
            return UnavailableSecret(name, "expired", used, error.details["expires"])
        return UnavailableSecret(name, "no_key", used)
    except OrtetError:  # damaged, or a needed package is missing
        return UnavailableSecret(name, "missing", used)
    return None


def _journal(store: StoreContext, commit: Oid) -> JournalHead | None:
    state = store.history.state(commit)
    return decode(JournalHead, store.objects.get(Oid(state.journal))) if state.journal else None
