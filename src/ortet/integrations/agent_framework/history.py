"""The history provider: what an agent of the Agent Framework said is a session's messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from agent_framework import AgentSession, HistoryProvider, SessionContext, SupportsAgentRun
from agent_framework import Message as Foreign
from agent_framework._sessions import filter_new_messages

from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import lent_of, naming, say, whole_of
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations._shared.whole import whole
from ortet.integrations.agent_framework.messages import (
    answered,
    check_properties,
    foreign_of,
    message_of,
    result_of,
)
from ortet.journal.conversation.compaction import summary_message
from ortet.sessions.reader import View
from ortet.sessions.recollect import last_compaction, rules_of
from ortet.sessions.session import Session

_COUNTS = {
    "input_token_count": "input_tokens",
    "output_token_count": "output_tokens",
    "total_token_count": "total_tokens",
}


class OrtetHistoryProvider(HistoryProvider):
    """`Agent(…, context_providers=[OrtetHistoryProvider(hub)])`. Each AgentSession is the Ortet
    session of its id; `options` are those of `hub.session` for a new one: goal, budget, profile.
    What each run used is spent of the session's budget, unless `spend` is False."""

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
        self._lent = lent_of(hub, agent)
        self._ours: set[str] = set()  # calls that were stored here, whose results may still come

    def name_of(self, session_id: str | None) -> str:
        """Of the Ortet session: `ortet journal NAME`, `hub.get(NAME)`."""
        return session_name(session_id or "default")

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Foreign]:
        """All in context, in order; a summary that stands for what was compacted comes first, and
        calls that a crash cut off have a result that says so."""
        del state, kwargs
        found = await asyncio.to_thread(self._read, self.name_of(session_id))
        if self.skip_excluded:
            return [one for one in found if not one.additional_properties.get("_excluded", False)]
        return found

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Foreign],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Those that are new, all or none, on the disk when it returns."""
        del state, kwargs
        if messages:
            await whole(self._write, session_id, list(messages))

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        await super().after_run(agent=agent, session=session, context=context, state=state)
        response = context.response
        used = getattr(response, "usage_details", None)
        if self._spend and used:
            usage = {word: used[key] for key, word in _COUNTS.items() if used.get(key)}
            model = getattr(response, "model", None) or "default"
            await whole(self._pay, context.session_id, str(model), usage)

    # in a thread

    def _read(self, name: str) -> list[Foreign]:
        try:
            with self._lent.reading(name) as view:
                past = last_compaction(view)
                first = [] if past is None else rules_of(view)
                if past is not None and past.summary:
                    first.append(summary_message(past))
                found = [foreign_of(one) for one in first] + _foreign(view)
                calling = view.mind.core.calling
                return found + [result_of(call) for call in calling if call.id not in self._ours]
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return []

    def _write(self, session_id: str | None, messages: list[Foreign]) -> None:
        with self._lent.writing(self.name_of(session_id), **self._options) as session:
            new = filter_new_messages(_foreign(session, len(messages) + 1), messages)
            if not new:
                return
            check_properties(new)
            said = [message_of(one) for one in new]
            known = self._ours | answered(new)
            if any(call.id not in known for call in session.mind.core.calling):
                session.close_calls()  # of a process that ended in between
            _introduce(session, session_id)
            with naming("message", said):
                say(session, said)
            waiting = {call.id for call in session.mind.core.calling}
            self._ours = (self._ours - answered(new)) | waiting

    def _pay(self, session_id: str | None, model: str, usage: dict[str, Any]) -> None:
        with self._lent.writing(self.name_of(session_id), **self._options) as session:
            session.model_call("agent-framework", model, {}, usage)


def _foreign(view: View, last: int | None = None) -> list[Foreign]:
    messages = view.messages() if last is None else view.messages(last=last)
    return [foreign_of(whole_of(view, message)) for message in messages]


def _introduce(session: Session, session_id: str | None) -> None:
    """Its name does not always tell the id that the framework knows it by."""
    if session.name != (session_id or "default") and session.mind.core.events <= 1:
        session.record("agent-framework.session", {"session_id": session_id})
