"""`OrtetSessionService`: conversations of ADK as sessions of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event as AdkEvent
from google.adk.platform import time as adk_time
from google.adk.sessions import BaseSessionService
from google.adk.sessions import Session as AdkSession
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from ortet.backends.base import RowChange
from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.integrations.adk import state as states
from ortet.integrations.adk.events import data_of, event_of, kept, plain_state, telling_of
from ortet.integrations.adk.knowing import BEGUN, Known, caught_up
from ortet.integrations.adk.lending import in_thread, lent_by, let_go, name_of, stripped
from ortet.sessions.history.forking import fork_as
from ortet.sessions.reader import View
from ortet.sessions.writing.telling import Telling, seal_if_long, tell

_MOST = 256
"""Sessions of which is remembered what they add up to."""
_STALE = (
    "the session was changed in the store since it was loaded: get it again, then append to that"
)


class OrtetSessionService(BaseSessionService):
    """Each event is a message or a record, durable when `append_event` returns. Who appends to a
    session that another has changed since is refused: StaleSessionError. State of apps and users is
    shared by their sessions, in all processes."""

    def __init__(self, hub: Hub, *, agent: str = "default") -> None:
        self._hub = hub
        self._lent = lent_by(hub, agent)
        self._known: dict[str, Known] = {}

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        id_ = str(uuid4()) if session_id is None else stripped(session_id) or str(uuid4())
        return await in_thread(self._create, app_name, user_id, id_, state or {})

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> AdkSession | None:
        id_ = stripped(session_id) or session_id
        return await in_thread(self._get, app_name, user_id, id_, config or GetSessionConfig())

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        return ListSessionsResponse(sessions=await in_thread(self._list, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        id_ = stripped(session_id) or session_id
        await in_thread(self._delete, name_of(app_name, user_id, id_))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            with self._lent.hub() as hub:
                return states.of_user(hub.catalog, app_name, user_id)

        return await in_thread(look)

    async def append_event(self, session: AdkSession, event: AdkEvent) -> AdkEvent:
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        await in_thread(self._append, session, event)
        return event

    async def fork_session(
        self, *, app_name: str, user_id: str, session_id: str, new_id: str | None = None
    ) -> AdkSession:
        """Another session that goes on from where this one is; it costs the same however many
        events there are. SessionNotFoundError, AlreadyExistsError."""
        return await in_thread(self._fork, app_name, user_id, session_id, new_id or str(uuid4()))

    def close(self) -> None:
        """Let every session go; the other services of the same hub and agent are closed too."""
        let_go(self._hub, self._lent)

    # inside, in a thread

    def _create(self, app: str, user: str, id_: str, given: dict[str, Any]) -> AdkSession:
        name = name_of(app, user, id_)
        parts = states.split(plain_state(given))
        with self._lent.writing(name) as session:
            if self._catch_up(name, session).begun:
                raise AlreadyExistsError(f"Session with id {id_} already exists.")
            data = {
                "app": app,
                "user": user,
                "session": id_,
                "time": adk_time.get_time(),
                **kept("state", parts.session),
            }
            tell(session, [Telling(BEGUN, data)], rows=self._rows(session.hub, app, user, parts))
            known = self._catch_up(name, session)
            return self._made(session.hub, known, [])

    def _get(self, app: str, user: str, id_: str, config: GetSessionConfig) -> AdkSession | None:
        name = name_of(app, user, id_)
        with suppress(NotFound), self._lent.reading(name) as view:
            known = self._catch_up(name, view)
            if known.begun:
                return self._made(view.hub, known, list(_events(view, known, config)))
        return None

    def _list(self, app: str, user: str | None) -> list[AdkSession]:
        name = name_of(app, "-") if user is None else name_of(app, user)
        prefix = name.partition("/")[0] if user is None else name
        found = []
        for other in self._lent.names(f"{prefix}/"):
            if other.count("/") == 2:
                with suppress(NotFound), self._lent.reading(other) as view:
                    known = self._catch_up(other, view)
                    if known.begun and name_of(*known.ids) == other:
                        found.append(self._made(view.hub, known, []))
        return sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id))

    def _delete(self, name: str) -> None:
        self._known.pop(name, None)
        with suppress(NotFound), self._lent.aside(name) as (hub, row):
            hub.remove(row.id)

    def _append(self, session: AdkSession, event: AdkEvent) -> None:
        given = event.actions.state_delta if event.actions else {}
        parts = states.split(plain_state(given or {}))
        telling = telling_of(event)
        app, user = session.app_name, session.user_id
        name = name_of(app, user, session.id)
        try:
            with self._lent.writing(name, create=False) as ours:
                known = self._catch_up(name, ours)
                if not known.begun:
                    raise SessionNotFoundError(f"Session {session.id} not found.")
                if _is_there(ours, known, event):
                    return
                _check_fresh(session, known)
                tell(ours, [telling], rows=self._rows(ours.hub, app, user, parts))
                known = self._catch_up(name, ours)
                session.last_update_time = known.updated
                session._storage_update_marker = known.marker
                self._commit_event_to_session(session, event)  # inside: in the order of the store
                seal_if_long(ours, "events of ADK")
        except NotFound as error:
            if error.kind != "no_session":
                raise
            raise SessionNotFoundError(f"Session {session.id} not found.") from error

    def _fork(self, app: str, user: str, id_: str, new: str) -> AdkSession:
        name, copied = name_of(app, user, id_), name_of(app, user, new)
        try:
            with self._lent.writing(name, create=False) as session:
                if self._lent.exists(copied):
                    raise AlreadyExistsError(f"Session with id {new} already exists.")
                if not self._catch_up(name, session).begun:
                    raise SessionNotFoundError(f"Session {id_} not found.")
                point = from_hex(session.commit("fork point").oid)
                copy = fork_as(session, copied, point)
                data = {"app": app, "user": user, "session": new, "forked_from": id_}
                tell(copy, [Telling(BEGUN, data)])
                known = self._catch_up(copied, copy)
                return self._made(copy.hub, known, list(_events(copy, known, GetSessionConfig())))
        except NotFound as error:
            raise SessionNotFoundError(f"Session {id_} not found.") from error

    def _rows(self, hub: Hub, app: str, user: str, parts: states.Split) -> list[RowChange]:
        """As in the journal, names stand for secrets."""
        return states.changes(app, user, states.Split(*map(hub.hidden, parts)))

    def _catch_up(self, name: str, view: View) -> Known:
        known = caught_up(self._known.pop(name, None), view)
        self._known[name] = known  # at the end: the one used last
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return known

    def _made(self, hub: Hub, known: Known, events: list[AdkEvent]) -> AdkSession:
        app, user, id_ = known.ids
        made = AdkSession(
            app_name=app,
            user_id=user,
            id=id_,
            state=known.state_now() | states.shared(hub.catalog, app, user),
            events=events,
            last_update_time=known.updated,
        )
        made._storage_update_marker = known.marker
        return made


def _events(view: View, known: Known, config: GetSessionConfig) -> Iterator[AdkEvent]:
    """Those that are asked for, in order."""
    wanted = config.num_recent_events
    if wanted == 0 or not known.seqs:
        return
    first = known.seqs[0] if wanted is None else known.seqs[-wanted:][0]
    for event in view.events(first - 1, known.seqs[-1]):
        found = event_of(view.hub, event)
        if found is not None and found.timestamp >= (config.after_timestamp or 0):
            yield found


def _is_there(view: View, known: Known, event: AdkEvent) -> bool:
    """Whether this very event was appended before: whoever delivers it again changes nothing."""
    seq = known.events.get(event.id)
    if seq is None:
        return False
    stored = [data_of(view.hub, one) for one in view.events(seq - 1, seq)]
    again = AdkEvent.model_validate(event.model_dump(mode="json", exclude_none=True))
    return any(one is not None and AdkEvent.model_validate(one) == again for one in stored)


def _check_fresh(session: AdkSession, known: Known) -> None:
    """As ADK's own services tell it: by the marker of a session that was loaded here, else by its
    time and its last event."""
    if session._storage_update_marker is not None:
        if session._storage_update_marker != known.marker:
            raise StaleSessionError(_STALE)
    elif known.updated > session.last_update_time:
        last = session.events[-1].id if session.events else ""
        if last != known.last:
            raise StaleSessionError(_STALE)
