"""The session interface of the OpenAI Agents SDK: its items are messages of an Ortet session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from ortet._util.validation import check_text
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import (
    append_messages,
    check_session_options,
    clear_context,
    get_session_pool,
    replace_messages_from,
    report_invalid_value,
)
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.openai_agents.item_cache import item_cache_for, newest_messages
from ortet.integrations.openai_agents.items import messages_of
from ortet.integrations.openai_agents.order import SerialWorker
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

T = TypeVar("T")

MAIN_BRANCH = "main"


class OpenAIConversation:
    """The four methods that the SDK calls.

    Calls of one object run in the order in which they are made. Each call is done completely or not
    at all, also if the caller is cancelled. Other processes may use the same session between two
    calls.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        hub: Hub,
        *,
        agent: str = "default",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_text(session_id=session_id)
        if not session_id:
            raise Invalid("bad_name", "session_id is empty: give the id of a conversation")
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        self._options = check_session_options(options)
        self._pool = get_session_pool(hub, agent)
        self._name = session_name(session_id)
        self._branch = MAIN_BRANCH
        self._open_calls: set[str] = set()  # tool calls added here whose results may still follow
        self._worker = SerialWorker()

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._name

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """Return the items in order, or exactly the `limit` latest ones.

        The Runner counts the items and drops results without their calls itself. If the context was
        compacted, the summary comes first.
        """
        most = resolve_session_limit(limit, self.session_settings)
        found = await self._worker.do(lambda: self._items(most, branch_id))
        return cast("list[TResponseInputItem]", found)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append all items or none; they are on disk when this returns."""
        if items:
            given = list(items)
            await self._worker.do(lambda: self._add(given))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item. It stays in the history; `ortet reflog` shows it."""
        return cast("TResponseInputItem | None", await self._worker.do(self._pop))

    async def clear_session(self) -> None:
        """Clear the context. Facts, decisions and spending stay.

        The messages stay in the journal; `s.dropped()` returns them.
        """
        await self._worker.do(self._clear)

    def close(self) -> None:
        """Release the session, so that another process can open it.

        The object can be used again.
        """
        self._worker.close()
        self._pool.evict(self._session_name())

    # Synchronous bodies, run in the worker thread.

    def _items(self, limit: int | None, branch: str | None) -> list[Any]:
        name = self._session_name(branch)
        ours = self._open_calls if name == self._session_name() else set[str]()
        return self._read(lambda view: item_cache_for(view).items(view, limit, ours), name) or []

    def _add(self, items: list[Any]) -> None:
        messages = messages_of(items)
        writing = self._pool.writing(self._session_name(), **self._options)
        with report_invalid_value("item", items), writing as session:
            if calling := session.state.core.calling:
                known = {message.get("tool_call_id") for message in messages} | self._open_calls
                if any(call.id not in known for call in calling):
                    session.close_tool_calls()  # They belong to a process that ended.
            if self._name != self.session_id:
                self._record_session_id(session)
            append_messages(session, messages)
            self._open_calls = {call.id for call in session.state.core.calling}

    def _record_session_id(self, session: Session) -> None:
        """Record the session id of the SDK, if the session name does not equal it."""
        if session.state.core.events <= 1:
            session.record("openai.session", {"session_id": self.session_id})

    def _pop(self) -> Any:
        def pop(session: Session) -> Any:
            for message, items in newest_messages(session):
                if not items:
                    continue
                self._open_calls.update(results_of(message))
                self._open_calls.update(call.id for call in calls_of(message))
                replace_messages_from(session, message.seq, messages_of(items[:-1]))
                return items[-1]
            return None

        return self._write(pop)

    def _clear(self) -> None:
        self._open_calls.clear()
        self._write(clear_context)

    # Session names.

    def _session_name(self, branch: str | None = None) -> str:
        """Return the name of the Ortet session of a branch."""
        del branch
        return self._name

    def _write(self, verb: Callable[[Session], T], name: str = "") -> T | None:
        """Run `verb` on the session; return None if the session does not exist."""
        try:
            with self._pool.writing(name or self._session_name(), create=False) as session:
                return verb(session)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None

    def _read(self, verb: Callable[[SessionReader], T], name: str = "") -> T | None:
        try:
            with self._pool.reading(name or self._session_name()) as view:
                return verb(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None
