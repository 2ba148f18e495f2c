"""Replaces the last items of a conversation in one write, for the SDK's own compaction.

The SDK asks OpenAI's service for the compacted items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortet._util.validation import POSITIVE_COUNT, require
from ortet.integrations._shared.messages import clear_context, replace_messages_from
from ortet.integrations.openai_agents.item_cache import item_cache_for
from ortet.integrations.openai_agents.items import Item, messages_of
from ortet.integrations.openai_agents.turns import TurnTrackingConversation
from ortet.sessions.reader import SessionReader
from ortet.sessions.recollect import last_compaction
from ortet.sessions.session import Session

if TYPE_CHECKING:
    from agents.memory.session import _CompactionSnapshot

SeqItem = tuple[int, Item]
"""An item with the event of its message."""


class CompactableConversation(TurnTrackingConversation):
    """The part of OrtetSession that OpenAIResponsesCompactionSession uses if present."""

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _CompactionSnapshot | None:
        """Return the latest items, with a function that replaces some of them.

        The function replaces nothing and returns False if the conversation changed since. Return
        None if a summary of ours is in context: the SDK then replaces everything.
        """
        from agents.memory.session import _CompactionSnapshot

        require(POSITIVE_COUNT, limit=limit)
        found = await self._worker.do(lambda: self._read(self._stored_items))
        if found is None:
            return None
        timeline, placed = found
        latest, complete = placed[-limit:], len(placed) <= limit

        async def replace(start: int, output: list[Any]) -> bool:
            expected = latest[start:]
            whole = complete and start == 0

            def write(session: Session) -> bool:
                now = self._stored_items(session)
                if not expected or now is None or now[0] != timeline:
                    return False
                if now[1][-len(expected) :] != expected or (whole and len(now[1]) != len(placed)):
                    return False
                return _replace_tail(session, now[1], len(expected), list(output), all_items=whole)

            return bool(await self._worker.do(lambda: self._write(write)))

        return _CompactionSnapshot([item for _, item in latest], complete, replace)  # type: ignore[misc]

    def _stored_items(self, view: SessionReader) -> tuple[str, list[SeqItem]] | None:
        past = last_compaction(view)
        if past is not None and (past.summary or past.rules):
            return None
        placed = [(one.seq, one.item) for one in item_cache_for(view).stored_items(view)]
        return view.event_log.timeline, placed


def _replace_tail(
    session: Session, stored: Sequence[SeqItem], count: int, output: list[Any], *, all_items: bool
) -> bool:
    if all_items:
        return clear_context(session, messages_of(output))
    at = len(stored) - count
    seq = stored[at][0]
    kept = [item for other, item in stored[:at] if other == seq]  # items of the same message
    replace_messages_from(session, seq, messages_of([*kept, *output]))
    return True
