"""Compaction of the items: by OpenAI's service through the SDK, or locally without a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortet._util.validation import POSITIVE_COUNT, require
from ortet.integrations._shared.messages import clear_context, replace_messages_from
from ortet.integrations.openai_agents.conversation import OpenAIConversation
from ortet.integrations.openai_agents.item_cache import item_cache_for
from ortet.integrations.openai_agents.items import Item, messages_of
from ortet.journal.conversation.compaction import Summarise
from ortet.sessions.conversation_state import last_compaction
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

if TYPE_CHECKING:
    from agents.memory.session import _CompactionSnapshot

SeqItem = tuple[int, Item]
"""An item with the event of its message."""


async def compaction_snapshot(
    conversation: OpenAIConversation, limit: int
) -> _CompactionSnapshot | None:
    """Return the latest items, with a function that replaces some of them in one write.

    The SDK's OpenAIResponsesCompactionSession calls this, asks the service for the compacted items
    and then calls the function. The function replaces nothing and returns False if the conversation
    changed since.

    Returns:
        None if a summary of ours is in context: the SDK then replaces everything.
    """
    from agents.memory.session import _CompactionSnapshot

    require(POSITIVE_COUNT, limit=limit)
    snapshot = await conversation.do(lambda: conversation.read(_stored_items))
    if snapshot is None:
        return None
    timeline, stored = snapshot
    latest, is_complete = stored[-limit:], len(stored) <= limit

    async def replace(start: int, output: list[Any]) -> bool:
        expected = latest[start:]
        is_whole = is_complete and start == 0

        def write(session: Session) -> bool:
            current = _stored_items(session)
            if not expected or current is None or current[0] != timeline:
                return False
            items = current[1]
            if items[-len(expected) :] != expected or (is_whole and len(items) != len(stored)):
                return False
            return _replace_tail(session, items, len(expected), list(output), all_items=is_whole)

        return bool(await conversation.do(lambda: conversation.write(write)))

    return _CompactionSnapshot([item for _, item in latest], is_complete, replace)  # type: ignore[misc]


def _stored_items(view: SessionReader) -> tuple[str, list[SeqItem]] | None:
    past = last_compaction(view.internals.context)
    if past is not None and (past.summary or past.rules):
        return None
    items = [(stored.seq, stored.item) for stored in item_cache_for(view).stored_items(view)]
    return view.internals.event_log.timeline, items


def _replace_tail(
    session: Session, stored: Sequence[SeqItem], count: int, output: list[Any], *, all_items: bool
) -> bool:
    if all_items:
        return clear_context(session, messages_of(output))
    start = len(stored) - count
    seq = stored[start][0]
    kept_items = [item for other, item in stored[:start] if other == seq]  # of the same message
    replace_messages_from(session, seq, messages_of([*kept_items, *output]))
    return True


class LocalCompactor:
    """Compacts the context of a conversation when it has more than `above` messages.

    Its methods run in the worker thread of the conversation.
    """

    def __init__(
        self,
        conversation: OpenAIConversation,
        *,
        above: int,
        keep_last: int,
        summarise: Summarise | None,
    ) -> None:
        self._conversation = conversation
        self._above, self._keep_last, self._summarise = above, keep_last, summarise

    def add(self, items: list[Any]) -> None:
        """Append items, then compact unless a tool call waits for its result."""
        self._conversation.add(items)
        if not self._conversation.open_calls:
            # The SDK calls run_compaction only for responses that have an id from a service.
            self.compact(force=False)

    def compact(self, *, force: bool) -> None:
        """Compact the context if it is too long, or in any case with `force`."""
        conversation = self._conversation
        with conversation.pool.writing(conversation.session_name(), create=False) as session:
            if force or len(session.messages(last=self._above + 1)) > self._above:
                session.compact(self._keep_last, self._summarise)
