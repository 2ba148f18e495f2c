"""`OrtetSessionService`: stores ADK conversations as sessions of an agent."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event as AdkEvent
from google.adk.platform import time as adk_time
from google.adk.sessions import BaseSessionService
from google.adk.sessions import Session as AdkSession
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.adk.sessions.state import State

from ortet._util.codec import checksum
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub, hub_of
from ortet.ids import from_hex
from ortet.integrations._shared.session_pool import AdapterSessionPool, require_hub, session_name
from ortet.integrations.adk.events import (
    data_of,
    decode_field,
    encode_field,
    event_of,
    plain_state,
    to_journal_event,
)
from ortet.integrations.aio import to_thread_shielded
from ortet.journal.events import Event
from ortet.sessions.history.fork_session import fork_named_session
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.bulk_import import append_events, commit_if_many_events
from ortet.sessions.writing.large_events import EventInput, full_data

# State of apps and users, shared by their sessions, in one catalog row for each key. Processes that
# set different keys do not conflict. For one key the last write wins.


class ScopedState(NamedTuple):
    """State by scope. Temporary state of one run is left out."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


def split_state(state: Mapping[str, Any]) -> ScopedState:
    scoped = ScopedState({}, {}, {})
    for key, value in state.items():
        if key.startswith(State.APP_PREFIX):
            scoped.app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            scoped.user[key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            scoped.session[key] = value
    return scoped


def state_rows(app: str, user: str, state: ScopedState) -> list[RowChange]:
    """Return the row changes, to write in one transaction with their event."""
    rows = [_row(_kind(app), key, value) for key, value in state.app.items()]
    return rows + [_row(_kind(app, user), key, value) for key, value in state.user.items()]


def shared_state(catalog: Catalog, app: str, user: str) -> dict[str, Any]:
    """Return the app and user state that a session sees, with key prefixes."""
    of_app = {
        State.APP_PREFIX + key: value for key, value in _read_rows(catalog, _kind(app)).items()
    }
    return of_app | {State.USER_PREFIX + k: v for k, v in user_state(catalog, app, user).items()}


def user_state(catalog: Catalog, app: str, user: str) -> dict[str, Any]:
    return _read_rows(catalog, _kind(app, user))


def _read_rows(catalog: Catalog, kind: str) -> dict[str, Any]:
    values, after = list[tuple[str, Any]](), ""
    while page := catalog.rows(kind, after):
        values += [tuple(json.loads(row.value)) for row in page]
        after = page[-1].key
    return dict(sorted(values))


def _row(kind: str, key: str, value: Any) -> RowChange:
    return RowChange(kind, _digest(key), json.dumps([key, value]).encode())


def _kind(*ids: str) -> str:
    return "/".join(["adk", *map(_digest, ids)])


def _digest(text: str) -> str:
    return checksum(text.encode("utf-8", "surrogatepass")).hex()


# The folded state of an ADK session: ids, state and last applied event.

SESSION_EVENT = "adk.session"
"""First event of an ADK session. A fork adds one with its own ids."""


class AdkSessionState:
    """The state of an ADK session as of event `seq` of a timeline."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.ids: tuple[str, str, str] = ("", "", "")
        self.has_begun = False
        self.updated = 0.0
        self.marker = ""
        self.last_event_id = ""
        self.seq_by_event_id: dict[str, int] = {}
        self.seqs: list[int] = []
        self._state: dict[str, Any] = {}

    def copy_state(self) -> dict[str, Any]:
        """Return a copy of the session's own state, without prefixed keys."""
        return copy.deepcopy(self._state)

    def apply(self, hub: Hub, event: Event) -> None:
        if event.kind == SESSION_EVENT and not event.erased:
            data = full_data(hub.store, event)
            self.ids, self.has_begun = (data["app"], data["user"], data["session"]), True
            if "forked_from" not in data:
                self._state = decode_field("state", data)
                self.updated = data["time"]
        else:
            data_ = data_of(hub, event)
            if data_ is None:
                return
            self._state.update(split_state(data_.get("actions", {}).get("state_delta", {})).session)
            self.updated, self.last_event_id = data_["timestamp"], data_["id"]
            self.seq_by_event_id[self.last_event_id] = event.seq
            self.seqs.append(event.seq)
        self.marker = f"{event.timeline}:{event.seq}"


def catch_up(state: AdkSessionState | None, view: SessionReader) -> AdkSessionState:
    """Apply new events, also of other processes.

    Start again if the session changed its timeline.
    """
    if state is None or state.timeline != view.internals.row.timeline:
        state = AdkSessionState(view.internals.row.timeline)
    upto = view.internals.state.core.events
    if state.seq > upto:
        state = AdkSessionState(view.internals.row.timeline)
    if state.seq < upto:
        for event in view.events(state.seq, upto):
            state.apply(hub_of(view), event)
        state.seq = upto
    return state


# The session pool, session names and thread helper that the ADK services share.

T = TypeVar("T")

_POOLS_ATTRIBUTE = "lent_to_adk"
_LEASE_TIMEOUT_SECONDS = 20.0
"""Seconds to wait for another process. A late write is reported by ADK as a stale session."""


def get_adk_session_pool(hub: Hub, agent: str) -> AdapterSessionPool:
    """Return the session pool of this hub and agent.

    All services of a hub share it: with separate pools they would have to request sessions from
    each other.
    """
    shared: dict[str, AdapterSessionPool] = vars(require_hub(hub)).setdefault(_POOLS_ATTRIBUTE, {})
    if agent not in shared:
        shared[agent] = AdapterSessionPool(hub, agent=agent, lease_timeout=_LEASE_TIMEOUT_SECONDS)
    return shared[agent]


def close_session_pool(hub: Hub, pool: AdapterSessionPool) -> None:
    """Close the pool for all services of a hub. A service made later gets a new pool."""
    shared: dict[str, AdapterSessionPool] = vars(hub).get(_POOLS_ATTRIBUTE, {})
    if shared.get(pool.agent) is pool:
        del shared[pool.agent]
    pool.close()


def adk_session_name(app: str, user: str, *session: str) -> str:
    """Return the session name of a conversation, or without `session`, of the user's own data."""
    for what, id_ in zip(
        ("app_name", "user_id", "session_id"), (app, user, *session), strict=False
    ):
        if not isinstance(id_, str) or not id_ or not _is_text(id_):
            raise _bad_id(what, id_)
    return session_name(app, user, *session)


def strip_session_id(session_id: object) -> str:
    """Strip the session id, as ADK's own services do."""
    if not isinstance(session_id, str):
        raise _bad_id("session_id", session_id)
    return session_id.strip()


def _bad_id(field: str, id_: object) -> Invalid:
    return Invalid("bad_id", f"{field}={id_!r}: give some text")


async def run_in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await to_thread_shielded(function, *args, **kwargs)


def _is_text(id_: str) -> bool:
    try:
        id_.encode()
    except UnicodeEncodeError:
        return False
    return True


_MAX_CACHED_SESSIONS = 256
"""Number of sessions whose folded state stays in memory."""
_STALE = (
    "the session was changed in the store since it was loaded: get it again, then append to that"
)


class OrtetSessionService(BaseSessionService):
    """An ADK session service on an Ortet store.

    Each event is a message or a record, durable when `append_event` returns. Appending to a session
    that has changed since it was loaded raises StaleSessionError. State of apps and users is shared
    by their sessions in all processes.

    Example:
        runner = Runner(
            app_name="shop", agent=root, session_service=OrtetSessionService(ortet.open("chats"))
        )
    """

    def __init__(self, hub: Hub, *, agent: str = "default") -> None:
        """Use an open store.

        Args:
            hub: The open store.
            agent: Agent that owns the sessions.
        """
        self._hub = hub
        self._pool = get_adk_session_pool(hub, agent)
        self._states: dict[str, AdkSessionState] = {}

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Create a session; durable when this returns.

        Args:
            app_name: Name of the app.
            user_id: Id of the user.
            state: Initial state. Keys with "app:" and "user:" are shared.
            session_id: Id of the session; by default a new one.

        Returns:
            The session, without events.

        Raises:
            AlreadyExistsError: If there is a session of this id.
        """
        id_ = str(uuid4()) if session_id is None else strip_session_id(session_id) or str(uuid4())
        return await run_in_thread(self._create, app_name, user_id, id_, state or {})

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> AdkSession | None:
        """Return a session with its state and events, or None if it does not exist.

        Args:
            app_name: Name of the app.
            user_id: Id of the user.
            session_id: Id of the session.
            config: Which events to return; by default all.
        """
        id_ = strip_session_id(session_id) or session_id
        return await run_in_thread(self._get, app_name, user_id, id_, config or GetSessionConfig())

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions of an app, or of one user of it, without their events."""
        return ListSessionsResponse(sessions=await run_in_thread(self._list, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Remove a session. Nothing happens if it does not exist."""
        id_ = strip_session_id(session_id) or session_id
        await run_in_thread(self._delete, adk_session_name(app_name, user_id, id_))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user share."""

        def read_state() -> dict[str, Any]:
            with self._pool.hub() as hub:
                return user_state(hub.catalog, app_name, user_id)

        return await run_in_thread(read_state)

    async def append_event(self, session: AdkSession, event: AdkEvent) -> AdkEvent:
        """Append an event; durable when this returns. A partial event is not stored.

        Args:
            session: The session as it was loaded; it is updated.
            event: The event. An event that was appended before changes nothing.

        Returns:
            The event as it was stored.

        Raises:
            StaleSessionError: If the stored session changed since `session` was loaded.
            SessionNotFoundError: If the session does not exist.
            Invalid: If a value of the event cannot be stored. The message names the place.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        await run_in_thread(self._append, session, event)
        return event

    async def fork_session(
        self, *, app_name: str, user_id: str, session_id: str, new_id: str | None = None
    ) -> AdkSession:
        """Create a session that continues from the present state of another.

        The cost does not depend on the number of events.

        Args:
            app_name: Name of the app.
            user_id: Id of the user.
            session_id: Id of the session to fork.
            new_id: Id of the new session; by default a new one.

        Returns:
            The new session with its events.

        Raises:
            SessionNotFoundError: If the session does not exist.
            AlreadyExistsError: If there is a session of the new id.
        """
        return await run_in_thread(
            self._fork, app_name, user_id, session_id, new_id or str(uuid4())
        )

    def close(self) -> None:
        """Release every session. This also closes the other services of the same hub and agent."""
        close_session_pool(self._hub, self._pool)

    # Synchronous bodies, run in a thread.

    def _create(self, app: str, user: str, id_: str, initial_state: dict[str, Any]) -> AdkSession:
        name = adk_session_name(app, user, id_)
        parts = split_state(plain_state(initial_state))
        with self._pool.writing(name) as session:
            if self._catch_up(name, session).has_begun:
                raise AlreadyExistsError(f"Session with id {id_} already exists.")
            data = {
                "app": app,
                "user": user,
                "session": id_,
                "time": adk_time.get_time(),
                **encode_field("state", parts.session),
            }
            append_events(
                session,
                [EventInput(SESSION_EVENT, data)],
                rows=self._rows(hub_of(session), app, user, parts),
            )
            known = self._catch_up(name, session)
            return self._build_session(hub_of(session), known, [])

    def _get(self, app: str, user: str, id_: str, config: GetSessionConfig) -> AdkSession | None:
        name = adk_session_name(app, user, id_)
        with suppress(NotFound), self._pool.reading(name) as view:
            known = self._catch_up(name, view)
            if known.has_begun:
                return self._build_session(hub_of(view), known, list(_events(view, known, config)))
        return None

    def _list(self, app: str, user: str | None) -> list[AdkSession]:
        name = adk_session_name(app, "-") if user is None else adk_session_name(app, user)
        prefix = name.partition("/")[0] if user is None else name
        sessions = []
        for other in self._pool.names(f"{prefix}/"):
            if other.count("/") == 2:
                with suppress(NotFound), self._pool.reading(other) as view:
                    state = self._catch_up(other, view)
                    if state.has_begun and adk_session_name(*state.ids) == other:
                        sessions.append(self._build_session(hub_of(view), state, []))
        return sorted(sessions, key=lambda adk: (adk.last_update_time, adk.user_id, adk.id))

    def _delete(self, name: str) -> None:
        self._states.pop(name, None)
        with suppress(NotFound), self._pool.closed_session(name) as (hub, row):
            hub.remove(row.id)

    def _append(self, session: AdkSession, event: AdkEvent) -> None:
        delta = event.actions.state_delta if event.actions else {}
        parts = split_state(plain_state(delta or {}))
        journal_event = to_journal_event(event)
        app, user = session.app_name, session.user_id
        name = adk_session_name(app, user, session.id)
        try:
            with self._pool.writing(name, create=False) as stored:
                known = self._catch_up(name, stored)
                if not known.has_begun:
                    raise SessionNotFoundError(f"Session {session.id} not found.")
                if _is_appended(stored, known, event):
                    return
                _check_fresh(session, known)
                append_events(
                    stored, [journal_event], rows=self._rows(hub_of(stored), app, user, parts)
                )
                known = self._catch_up(name, stored)
                session.last_update_time = known.updated
                session._storage_update_marker = known.marker
                # inside the block, to keep the order of the store
                self._commit_event_to_session(session, event)
                commit_if_many_events(stored, "events of ADK")
        except NotFound as error:
            if error.kind != "no_session":
                raise
            raise SessionNotFoundError(f"Session {session.id} not found.") from error

    def _fork(self, app: str, user: str, id_: str, new: str) -> AdkSession:
        name, copied = adk_session_name(app, user, id_), adk_session_name(app, user, new)
        try:
            with self._pool.writing(name, create=False) as session:
                if self._pool.exists(copied):
                    raise AlreadyExistsError(f"Session with id {new} already exists.")
                if not self._catch_up(name, session).has_begun:
                    raise SessionNotFoundError(f"Session {id_} not found.")
                point = from_hex(session.commit("fork point").oid)
                copy = fork_named_session(session, copied, point)
                data = {"app": app, "user": user, "session": new, "forked_from": id_}
                append_events(copy, [EventInput(SESSION_EVENT, data)])
                known = self._catch_up(copied, copy)
                return self._build_session(
                    hub_of(copy), known, list(_events(copy, known, GetSessionConfig()))
                )
        except NotFound as error:
            raise SessionNotFoundError(f"Session {id_} not found.") from error

    def _rows(self, hub: Hub, app: str, user: str, parts: ScopedState) -> list[RowChange]:
        """Return the state rows with secrets redacted, as in the journal."""
        return state_rows(app, user, ScopedState(*map(hub.store.secrets.redact, parts)))

    def _catch_up(self, name: str, view: SessionReader) -> AdkSessionState:
        known = catch_up(self._states.pop(name, None), view)
        self._states[name] = known  # Move it to the end: the order is least recently used first.
        if len(self._states) > _MAX_CACHED_SESSIONS:
            del self._states[next(iter(self._states))]
        return known

    def _build_session(
        self, hub: Hub, state: AdkSessionState, events: list[AdkEvent]
    ) -> AdkSession:
        app, user, id_ = state.ids
        session = AdkSession(
            app_name=app,
            user_id=user,
            id=id_,
            state=state.copy_state() | shared_state(hub.catalog, app, user),
            events=events,
            last_update_time=state.updated,
        )
        session._storage_update_marker = state.marker
        return session


def _events(
    view: SessionReader, state: AdkSessionState, config: GetSessionConfig
) -> Iterator[AdkEvent]:
    """Yield the requested events in order."""
    count = config.num_recent_events
    if count == 0 or not state.seqs:
        return
    first = state.seqs[0] if count is None else state.seqs[-count:][0]
    for event in view.events(first - 1, state.seqs[-1]):
        adk_event = event_of(hub_of(view), event)
        if adk_event is not None and adk_event.timestamp >= (config.after_timestamp or 0):
            yield adk_event


def _is_appended(view: SessionReader, state: AdkSessionState, event: AdkEvent) -> bool:
    """Return True if this same event was appended before; delivering it again changes nothing."""
    seq = state.seq_by_event_id.get(event.id)
    if seq is None:
        return False
    stored = [data_of(hub_of(view), journal_event) for journal_event in view.events(seq - 1, seq)]
    plain = AdkEvent.model_validate(event.model_dump(mode="json", exclude_none=True))
    return any(data is not None and AdkEvent.model_validate(data) == plain for data in stored)


def _check_fresh(session: AdkSession, state: AdkSessionState) -> None:
    """Raise StaleSessionError if the stored session changed since it was loaded.

    Like ADK's own services, compare the marker of a loaded session, else its time and last event.
    """
    if session._storage_update_marker is not None:
        if session._storage_update_marker != state.marker:
            raise StaleSessionError(_STALE)
    elif state.updated > session.last_update_time:
        last = session.events[-1].id if session.events else ""
        if last != state.last_event_id:
            raise StaleSessionError(_STALE)
