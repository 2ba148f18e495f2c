"""What the OpenAI Agents SDK asks of a session: its items are messages of an Ortet session."""

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
    """The four verbs that the SDK calls. Calls of one object are done in the order they are made,
    each whole or not at all, also when the caller is cancelled; other processes may use the same
    session, and get their turn between two calls."""

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
        self._open_calls: set[str] = (
            set()
        )  # calls that were added here, whose results may still come
        self._worker = SerialWorker()

    @property
    def name(self) -> str:
        """Of the Ortet session: `ortet journal NAME`, `hub.get(NAME)`."""
        return self._name

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """The conversation in order, or its latest items: exactly so many, since the Runner counts
        them; it leaves out results whose calls are not among them. A summary that stands for what
        was compacted comes first."""
        most = resolve_session_limit(limit, self.session_settings)
        found = await self._worker.do(lambda: self._items(most, branch_id))
        return cast("list[TResponseInputItem]", found)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """All of them or none, on the disk when it returns."""
        if items:
            given = list(items)
            await self._worker.do(lambda: self._add(given))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take back the latest item. It stays in the history: `ortet reflog` leads there."""
        return cast("TResponseInputItem | None", await self._worker.do(self._pop))

    async def clear_session(self) -> None:
        """Begin anew. What was said goes out of context and stays in the journal: `s.dropped()` has
        it. Facts, decisions and spending stay."""
        await self._worker.do(self._clear)

    def close(self) -> None:
        """Let the session go; another process may have it at once. It can be used again."""
        self._worker.close()
        self._pool.evict(self._session_name())

    # in the thread of this conversation

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
                    session.close_tool_calls()  # of a process that ended in between
            if self._name != self.session_id:
                self._record_session_id(session)
            append_messages(session, messages)
            self._open_calls = {call.id for call in session.state.core.calling}

    def _record_session_id(self, session: Session) -> None:
        """Its name does not always tell the id that the SDK knows it by."""
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

    # where it is

    def _session_name(self, branch: str | None = None) -> str:
        """The name of the Ortet session that a branch is."""
        del branch
        return self._name

    def _write(self, verb: Callable[[Session], T], name: str = "") -> T | None:
        """None where there is no such session."""
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
