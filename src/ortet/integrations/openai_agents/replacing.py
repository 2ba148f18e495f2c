"""The end of a conversation, replaced in one write: for the SDK's own compaction, which asks
OpenAI's service for what stands in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ortet._util.validation import TIMES, must_be
from ortet.integrations._shared.messages import leave_out, take_back
from ortet.integrations.openai_agents.item_cache import shelf_of
from ortet.integrations.openai_agents.items import Item, messages_of
from ortet.integrations.openai_agents.turns import Turns
from ortet.sessions.reader import View
from ortet.sessions.recollect import last_compaction
from ortet.sessions.session import Session

if TYPE_CHECKING:
    from agents.memory.session import _CompactionSnapshot

Placed = tuple[int, Item]
"""An item, and the event of its message."""


class Replacing(Turns):
    """The half of OrtetSession that OpenAIResponsesCompactionSession asks for, where it can."""

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _CompactionSnapshot | None:
        """The latest items, and how to replace some of them unless something was said since. None
        where a summary of ours stands for others: the SDK then replaces all."""
        from agents.memory.session import _CompactionSnapshot

        must_be(TIMES, limit=limit)
        found = await self._order.do(lambda: self._read(self._placed))
        if found is None:
            return None
        timeline, placed = found
        latest, complete = placed[-limit:], len(placed) <= limit

        async def replace(start: int, output: list[Any]) -> bool:
            expected = latest[start:]
            whole = complete and start == 0

            def write(session: Session) -> bool:
                now = self._placed(session)
                if not expected or now is None or now[0] != timeline:
                    return False
                if now[1][-len(expected) :] != expected or (whole and len(now[1]) != len(placed)):
                    return False
                return _replace(session, now[1], len(expected), list(output), whole=whole)

            return bool(await self._order.do(lambda: self._write(write)))

        return _CompactionSnapshot([item for _, item in latest], complete, replace)  # type: ignore[misc]

    def _placed(self, view: View) -> tuple[str, list[Placed]] | None:
        past = last_compaction(view)
        if past is not None and (past.summary or past.rules):
            return None
        placed = [(one.seq, one.item) for one in shelf_of(view).placed(view)]
        return view.line.timeline, placed


def _replace(
    session: Session, placed: Sequence[Placed], count: int, output: list[Any], *, whole: bool
) -> bool:
    if whole:
        return leave_out(session, messages_of(output))
    at = len(placed) - count
    seq = placed[at][0]
    kept = [item for other, item in placed[:at] if other == seq]  # of the same message
    take_back(session, seq, messages_of([*kept, *output]))
    return True
