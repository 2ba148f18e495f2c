"""A session of the OpenAI Agents SDK that keeps its context short by itself, without a service."""

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
    """When more than `above` messages are in context after a turn, all but the last `keep_last` are
    left out, and a summary stands for them: `summarise(messages)` gives its text, else an extract
    is made. No call is parted from its result, and `s.dropped()` has what was left out.

    The SDK's OpenAIResponsesCompactionSession, which asks OpenAI's service, can be put around an
    OrtetSession instead.
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
        """Called by the Runner behind each turn; `{"force": True}` compacts in any case."""
        del wrapper
        force = bool(args and args.get("force"))
        await self._worker.do(lambda: self._compact(force))

    def _add(self, items: list[Any]) -> None:
        super()._add(items)
        if not self._open_calls:  # the SDK asks only where a service gave its response an id
            self._compact(force=False)

    def _compact(self, force: bool) -> None:
        with self._pool.writing(self._session_name(), create=False) as session:
            if force or len(session.messages(last=self._max_messages + 1)) > self._max_messages:
                session.compact(self._keep_last, self._summarise)
