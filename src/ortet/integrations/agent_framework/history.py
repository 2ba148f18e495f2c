"""`OrtetHistoryProvider`: stores messages of Agent Framework agents as messages of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from agent_framework import AgentSession, HistoryProvider, SessionContext, SupportsAgentRun
from agent_framework import Message as Foreign
from agent_framework._sessions import filter_new_messages

from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import (
    UNANSWERED_TEXT,
    append_messages,
    close_open_calls,
    get_session_pool,
    is_substitute_for,
    load_full_message,
    report_invalid_value,
)
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.agent_framework.messages import (
    answered_call_ids,
    check_properties,
    message_of,
    result_of,
    to_framework_message,
    waiting_call_ids,
)
from ortet.integrations.aio import to_thread_shielded
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.state.records import Message
from ortet.sessions.conversation_state import last_compaction, system_messages
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

_COUNTS = {
    "input_token_count": "input_tokens",
    "output_token_count": "output_tokens",
    "total_token_count": "total_tokens",
}


class OrtetHistoryProvider(HistoryProvider):
    """A history provider: `Agent(…, context_providers=[OrtetHistoryProvider(hub)])`.

    Each AgentSession is the Ortet session of its id.

    Example:
        provider = OrtetHistoryProvider(ortet.open("chats"), budget={"tokens": 10_000})
        agent = Agent(client=client, context_providers=[provider])
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "ortet"

    def __init__(
        self,
        hub: Hub,
        *,
        agent: str = "default",
        source_id: str = DEFAULT_SOURCE_ID,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
        spend: bool = True,
        **options: Any,
    ) -> None:
        """Use an open store. Arguments that are not listed are those of HistoryProvider.

        Args:
            hub: The open store.
            agent: Agent that owns the sessions.
            skip_excluded: Leave out messages that the framework has marked as excluded.
            spend: Charge the usage of each run to the budget of the session.
            options: Options of `hub.session` for a new session, such as goal, budget and profile.
        """
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.skip_excluded = skip_excluded
        self._spend = spend
        self._options = options
        self._pool = get_session_pool(hub, agent)
        self._open_calls: set[str] = set()  # tool calls stored here whose results may still follow

    def name_of(self, session_id: str | None) -> str:
        """Return the name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return session_name(session_id or "default")

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Foreign]:
        """Return the messages in context, in order.

        If the context was compacted, the summary comes first. Tool calls that a crash interrupted
        get a result that says so.

        Args:
            session_id: Id of the AgentSession; None is the session "default".
            state: Not used.
            kwargs: Not used.
        """
        del state, kwargs
        messages = await asyncio.to_thread(self._read, self.name_of(session_id))
        if self.skip_excluded:
            return [
                message
                for message in messages
                if not message.additional_properties.get("_excluded", False)
            ]
        return messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Foreign],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Store the new messages, all or none; they are on disk when this returns.

        Args:
            session_id: Id of the AgentSession; None is the session "default".
            messages: The messages. Those that are stored already are skipped.
            state: Not used.
            kwargs: Not used.

        Raises:
            Invalid: If JSON cannot represent a message. The error names the place.
        """
        del state, kwargs
        if messages:
            await to_thread_shielded(self._write, session_id, list(messages))

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Store the messages of a run and charge its usage; the framework calls this."""
        await super().after_run(agent=agent, session=session, context=context, state=state)
        response = context.response
        used = getattr(response, "usage_details", None)
        if self._spend and used:
            usage = {word: used[key] for key, word in _COUNTS.items() if used.get(key)}
            model = getattr(response, "model", None) or "default"
            await to_thread_shielded(self._record_usage, context.session_id, str(model), usage)

    # Synchronous bodies, run in a thread.

    def _read(self, name: str) -> list[Foreign]:
        try:
            with self._pool.reading(name) as view:
                past = last_compaction(view.internals.context)
                first = [] if past is None else system_messages(view.internals.context)
                if past is not None and past.summary:
                    first.append(summary_message(past))
                stored = view.messages()
                waiting = waiting_call_ids(stored)
                shown = [one for one in stored if not is_substitute_for(one, waiting)]
                messages = [to_framework_message(message) for message in first]
                messages += _framework_messages(view, shown)
                open_calls = self._open_calls | waiting
                calling = view.internals.state.core.calling
                return messages + [result_of(call) for call in calling if call.id not in open_calls]
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return []

    def _write(self, session_id: str | None, messages: list[Foreign]) -> None:
        with self._pool.writing(self.name_of(session_id), **self._options) as session:
            latest = session.messages(last=len(messages) + 1)
            new = filter_new_messages(_framework_messages(session, latest), messages)
            if not new:
                return
            check_properties(new)
            plain_messages = [message_of(message) for message in new]
            known = self._open_calls | answered_call_ids(new)
            if any(call.id not in known for call in session.internals.state.core.calling):
                # They wait for an approval that does not come, or belong to a process that ended.
                waiting = waiting_call_ids(session.messages())
                close_open_calls(session, dict.fromkeys(waiting, UNANSWERED_TEXT))
            _record_session_id(session, session_id)
            with report_invalid_value("message", plain_messages):
                append_messages(session, plain_messages)
            waiting = {call.id for call in session.internals.state.core.calling}
            self._open_calls = (self._open_calls - answered_call_ids(new)) | waiting

    def _record_usage(self, session_id: str | None, model: str, usage: dict[str, Any]) -> None:
        with self._pool.writing(self.name_of(session_id), **self._options) as session:
            session.accounting.model_call("agent-framework", model, {}, usage)


def _framework_messages(view: SessionReader, messages: Sequence[Message]) -> list[Foreign]:
    return [to_framework_message(load_full_message(view, message)) for message in messages]


def _record_session_id(session: Session, session_id: str | None) -> None:
    """Record the framework's session id, if the session name does not equal it."""
    if session.name != (session_id or "default") and session.internals.state.core.events <= 1:
        session.record("agent-framework.session", {"session_id": session_id})
