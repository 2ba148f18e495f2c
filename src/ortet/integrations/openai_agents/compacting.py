"""An OpenAI Agents session that compacts its context locally, without a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortet._util.validation import CALLABLE, COUNT, POSITIVE_COUNT, optional, require
from ortet.hub.hub import Hub
from ortet.integrations.openai_agents.session import OrtetSession
from ortet.journal.conversation.compaction import Summarise

if TYPE_CHECKING:
    from agents import RunContextWrapper
    from agents.memory.session import OpenAIResponsesCompactionArgs


class OrtetCompactingSession(OrtetSession):
    """A session that compacts its context after a turn.

    If more than `above` messages are in context, all but the last `keep_last` are replaced by a
    summary. A tool call is never separated from its result. `s.dropped()` returns the dropped
    messages.

    To compact with OpenAI's service, wrap an OrtetSession in the SDK's
    OpenAIResponsesCompactionSession instead.

    Args:
        session_id: the id of the conversation.
        hub: the open store.
        above: number of messages above which the context is compacted.
        keep_last: number of messages that stay.
        summarise: returns the summary of messages; by default an extract is made.
        options: further options of OrtetSession.
    """

    def __init__(
        self,
        session_id: str,
        hub: Hub,
        *,
        above: int = 40,
        keep_last: int = 20,
        summarise: Summarise | None = None,
        **options: Any,
    ) -> None:
        require(POSITIVE_COUNT, above=above)
        require(COUNT, keep_last=keep_last)
        optional(CALLABLE, summarise=summarise)
        super().__init__(session_id, hub, **options)
        self._max_messages, self._keep_last, self._summarise = above, keep_last, summarise

    async def run_compaction(
        self,
        args: OpenAIResponsesCompactionArgs | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Compact the context; the Runner calls this after each turn.

        `{"force": True}` compacts regardless of the number of messages.
        """
        del wrapper
        force = bool(args and args.get("force"))
        await self._worker.do(lambda: self._compact(force))

    def _add(self, items: list[Any]) -> None:
        super()._add(items)
        if not self._open_calls:
            # The SDK calls run_compaction only for responses that have an id from a service.
            self._compact(force=False)

    def _compact(self, force: bool) -> None:
        with self._pool.writing(self._session_name(), create=False) as session:
            if force or len(session.messages(last=self._max_messages + 1)) > self._max_messages:
                session.compact(self._keep_last, self._summarise)
