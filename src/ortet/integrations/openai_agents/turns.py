"""Turns of a conversation and the usage of each; a turn starts with a user message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from agents.result import RunResultBase
from agents.usage import Usage

from ortet._util.codec import to_json
from ortet._util.validation import check_text
from ortet.errors import NotFound
from ortet.integrations.openai_agents.conversation import OpenAIConversation
from ortet.integrations.openai_agents.item_cache import item_cache_for, newest_messages
from ortet.integrations.openai_agents.items import Item, is_user
from ortet.journal.conversation.text import clip
from ortet.journal.events import Event
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

T = TypeVar("T")

_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details")
_CALLS = (
    "function_call",
    "custom_tool_call",
    "computer_call",
    "file_search_call",
    "web_search_call",
    "shell_call",
    "code_interpreter_call",
    "tool_search_call",
    "mcp_call",
    "mcp_approval_request",
    "apply_patch_call",
)
_PREVIEW_CHARACTERS = 100


class ConversationTurn(NamedTuple):
    """A turn.

    `seq` is the event of its first message; 0 for items before the first user message.
    """

    number: int
    seq: int
    time: int
    content: Any
    items: list[Item]


class ConversationTurns:
    """Reports the turns of a conversation and what each used.

    The asynchronous methods are those of OrtetSession, which documents them.
    """

    def __init__(self, conversation: OpenAIConversation) -> None:
        self._conversation = conversation

    async def store_run_usage(self, result: RunResultBase) -> None:
        usage, model = result.context_wrapper.usage, _model_of(result)
        if usage is not None:
            conversation = self._conversation
            await conversation.do(
                lambda: conversation.write(
                    lambda session: self._record_usage(session, usage, model)
                )
            )

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        usage = await self._on_branch(branch_id, self._usage_by_turn) or {}
        if user_turn_number is not None:
            return usage.get(user_turn_number, {})
        return [{"user_turn_number": number, **used} for number, used in sorted(usage.items())]

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        return await self._conversation.do(lambda: self._usage(branch_id))

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        return [_turn_summary(turn) for turn in await self._turns(branch_id) if turn.seq]

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        check_text(search_term=search_term)
        pattern = re.compile(re.escape(search_term), re.IGNORECASE)
        return [
            _turn_summary(turn)
            for turn in await self._turns(branch_id)
            if turn.seq and any(pattern.search(text) for text in _texts(turn.content))
        ]

    async def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        turns = await self._turns(branch_id)
        return {
            turn.number: [{"type": _type(item), "tool_name": _tool(item)} for item in turn.items]
            for turn in turns
        }

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        tool_usage: list[tuple[str, int, int]] = []
        for turn in await self._turns(branch_id):
            called = (_tool(item) for item in turn.items if item.get("type") in _CALLS)
            counts = Counter(name for name in called if name)
            tool_usage += [(name, count, turn.number) for name, count in sorted(counts.items())]
        return tool_usage

    async def _turns(self, branch: str | None) -> list[ConversationTurn]:
        return await self._on_branch(branch, self.turns_of) or []

    async def _on_branch(self, branch: str | None, read: Callable[[SessionReader], T]) -> T | None:
        conversation = self._conversation
        return await conversation.do(
            lambda: conversation.read(read, conversation.session_name(branch))
        )

    # Synchronous bodies, run in the worker thread.

    def _record_usage(self, session: Session, usage: Usage, model: str) -> None:
        newest = newest_messages(session)
        seq = next((message.seq for message, items in newest if any(map(is_user, items))), 0)
        recorded = _turn_usage(session, seq)
        total = {
            **{key: int(getattr(usage, key) or 0) for key in _COUNTS},
            **{key: _dump_details(getattr(usage, key)) for key in _DETAILS},
        }
        before = {key: recorded.get(key, 0) for key in _COUNTS}
        if any(total[key] < before[key] for key in _COUNTS):  # another run in the same turn
            for key in _COUNTS:
                total[key] += before[key]
        increase = {key: total[key] - before[key] for key in _COUNTS}
        if any(increase.values()) or not recorded:
            session.accounting.model_call("openai", model, {"turn": seq, "used": total}, increase)

    def turns_of(self, view: SessionReader) -> list[ConversationTurn]:
        """Return all turns of a session."""
        turns: list[ConversationTurn] = []
        for seq, time, item in item_cache_for(view).stored_items(view):
            new = is_user(item)
            if new or not turns:
                last = turns[-1].number if turns else 0
                content = item.get("content") if new else None
                turns.append(ConversationTurn(last + new, seq if new else 0, time, content, []))
            turns[-1].items.append(item)
        return turns

    def turn(self, view: SessionReader, number: int) -> ConversationTurn:
        """Return a turn by its number.

        Raises:
            NotFound: "no_turn" if there is no such turn.
        """
        for turn in self.turns_of(view):
            if turn.seq and turn.number == number:
                return turn
        raise NotFound(
            "no_turn", f"there is no turn {number!r}: get_conversation_turns() has those there are"
        )

    def _usage_by_turn(self, view: SessionReader) -> dict[int, dict[str, Any]]:
        used = {seq: usage for (_, seq), usage in _usage_by_turn_event(view).items()}
        return {t.number: used[t.seq] for t in self.turns_of(view) if t.seq in used}

    def _usage(self, branch: str | None) -> dict[str, int] | None:
        conversation = self._conversation
        names = [conversation.session_name(branch)]
        if branch is None:
            names = [conversation.name, *(name for name, _ in conversation.forks())]
        usage: dict[tuple[str, int], dict[str, Any]] = {}
        for name in names:
            usage |= conversation.read(_usage_by_turn_event, name) or {}
        if not usage:
            return None
        total = {key: sum(used[key] for used in usage.values()) for key in _COUNTS}
        return {**total, "total_turns": len(usage)}


def _turn_usage(view: SessionReader, seq: int) -> dict[str, Any]:
    """Return the usage recorded for a turn so far."""
    records = [event.data["params"] for event in _model_events(view, seq)]
    return next((record["used"] for record in reversed(records) if record["turn"] == seq), {})


def _usage_by_turn_event(view: SessionReader) -> dict[tuple[str, int], dict[str, Any]]:
    """Return usage by timeline and event of the turn: branches share their common history."""
    usage: dict[tuple[str, int], dict[str, Any]] = {}
    for event in _model_events(view):
        usage[event.timeline, event.data["params"]["turn"]] = event.data["params"]["used"]
    return usage


def _model_events(view: SessionReader, after: int = 0) -> list[Event]:
    return [
        event
        for event in view.events(after)
        if event.kind == "model" and not event.erased and "used" in event.data.get("params", {})
    ]


def _model_of(result: RunResultBase) -> str:
    model = getattr(result.last_agent, "model", None)
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) and name else "default"


def _dump_details(details: Any) -> Any:
    dump = getattr(details, "model_dump", None)
    return dump() if callable(dump) else None


def _turn_summary(turn: ConversationTurn) -> dict[str, Any]:
    text = turn.content if isinstance(turn.content, str) else to_json(turn.content)
    return {
        "turn": turn.number,
        "content": clip(text, _PREVIEW_CHARACTERS),
        "full_content": turn.content,
        "timestamp": datetime.fromtimestamp(turn.time / 1e9, UTC).isoformat(),
        "can_branch": True,
    }


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and "text" in part]


def _type(item: Item) -> str:
    role = item.get("role")
    return role if role in ("user", "assistant") else str(item.get("type", "other"))


def _tool(item: Item) -> str | None:
    if item.get("type") in ("mcp_call", "mcp_approval_request") and item.get("server_label"):
        name = item.get("name")
        return f"{item['server_label']}.{name}" if name else str(item["server_label"])
    if item.get("type") in _CALLS and not isinstance(item.get("name"), str):
        return str(item["type"])
    return item["name"] if isinstance(item.get("name"), str) else None
