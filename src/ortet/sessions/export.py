"""Export of a conversation in the formats of model APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec.structs import replace

from ortet._util.validation import FLAG, require
from ortet.errors import Invalid
from ortet.journal import spill
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.conversation.provider_formats import (
    normalise_messages,
    to_chat_completions,
    to_chat_part,
    to_content_part,
    to_content_parts,
    to_response_items,
)
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.events import Event
from ortet.journal.state.records import Message, message_of
from ortet.sessions.actions.artifacts import StoredContent, load
from ortet.sessions.conversation_state import last_compaction, system_messages
from ortet.sessions.writing import large_events

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext

Format = Literal["openai", "openai-responses", "anthropic"]

_THOUGHT_SIGNATURES = {
    "thinking": "signature",
    "redacted_thinking": "data",
    "reasoning": "encrypted_content",
}
"""Kinds of thoughts, and the field that an API verifies each by."""
_BEGINNING = "(What was said before is not here.)"


def export_messages(view: SessionContext, format: Format, *, whole: bool) -> Any:
    """Export the conversation; see `Conversation.export_messages`."""
    if format not in get_args(Format):
        raise Invalid("bad_format", f"{format!r}: give one of {', '.join(get_args(Format))}")
    require(FLAG, whole=whole)
    said = list(_messages_to_export(view, whole=whole))
    if format == "openai":
        return _fill_empty_content(
            to_chat_completions(normalise_messages(_with_thoughts(said), to_chat_part))
        )
    if format == "openai-responses":
        return to_response_items(normalise_messages(_with_thoughts(said, "reasoning"), _for_items))
    told = to_content_parts(
        normalise_messages(_with_thoughts(said, "thinking", "redacted_thinking"), to_content_part)
    )
    told["messages"] = list(_alternate_roles(told["messages"]))
    return told


def _for_items(part: dict[str, Any]) -> dict[str, Any]:
    return part if part.get("type") == "reasoning" else to_chat_part(part)


def _messages_to_export(view: SessionContext, *, whole: bool) -> Iterator[Message]:
    """Iterate over the messages, with thoughts that an API accepts as separate messages.

    Large content that is stored apart from its event is loaded.
    """
    since = 0 if whole else view.state.core.since
    if not whole:
        yield from system_messages(view)
        past = last_compaction(view)
        if past is not None and past.summary:
            yield summary_message(past)
    for event in view.events(since):
        if event.erased or is_superseded(view.state.core.aside, event.seq):
            continue
        if event.kind == "message":
            yield message_of(_restore_spilled(view, event))
        elif (
            event.kind == "thought"
            and (thought := _thought(_restore_spilled(view, event))) is not None
        ):
            yield thought


def _restore_spilled(view: SessionContext, event: Event) -> Event:
    if not event.refs:  # without refs the name is user data and must not read the store
        return event
    if spill.SPILL_KEY not in event.data:
        return replace(event, data=large_events.full_data(view.store, event))

    def read(named: dict[str, Any]) -> bytes:
        return load(view.store.objects, StoredContent(named["oid"], named["size"]))

    return replace(event, data=spill.load_spilled(event.data, read))


def _thought(event: Event) -> Message | None:
    """Return a thought that its model signed as a message, or None for other thoughts."""
    data = event.data
    part, of = data.get("part"), data.get("of")
    if not isinstance(part, dict):
        return None
    if part.get("type") == "thinking":
        part = {**part, "thinking": data.get("text", "")}
    elif part.get("type") == "reasoning":
        part = _reasoning(part, f"rs_{event.seq}")
    extra = {"id": of} if of else {}
    return Message(event.seq, "assistant", [part], event.time, extra)


def _reasoning(part: dict[str, Any], id_: str) -> dict[str, Any]:
    """Return a reasoning item with only the fields that its API accepts."""
    summary = part.get("summary")
    told = [one for one in summary if _is_summary(one)] if isinstance(summary, list) else []
    known = {key: part.get(key) for key in ("id", "encrypted_content")}
    texts = {key: value for key, value in known.items() if isinstance(value, str)}
    return {"type": "reasoning", "id": id_, "summary": told, **texts}


def _is_summary(one: Any) -> bool:
    return _type(one) == "summary_text" and isinstance(one.get("text"), str)


def _with_thoughts(messages: list[Message], *kinds: str) -> Iterator[Message]:
    """Keep only thoughts of these kinds that their model has signed: an API refuses others."""
    for message in messages:
        if message.role != "assistant" or not isinstance(message.content, list):
            yield message
            continue
        kept = [part for part in message.content if _is_accepted(part, kinds)]
        if kept or not message.content:
            yield replace(message, content=kept)


def _is_accepted(part: Any, kinds: tuple[str, ...]) -> bool:
    seal = _THOUGHT_SIGNATURES.get(_type(part))
    return seal is None or (_type(part) in kinds and isinstance(part.get(seal), str))


def _type(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else ""
    return kind if isinstance(kind, str) else ""


def _fill_empty_content(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep only text of assistants. Only a message with tool calls may have no content."""
    for one in messages:
        if one["role"] == "assistant" and isinstance(one["content"], list):
            one["content"] = [part for part in one["content"] if _type(part) == "text"] or None
        if not one["content"] and not one.get("tool_calls"):
            one["content"] = ""
    return messages


def _alternate_roles(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Start with a user message, and put tool results before other content of a user."""
    if messages and messages[0]["role"] != "user":
        yield {"role": "user", "content": [{"type": "text", "text": _BEGINNING}]}
    for one in messages:
        content = one["content"]
        if one["role"] == "user":
            content = sorted(content, key=lambda part: part.get("type") != "tool_result")
        yield {"role": one["role"], "content": content}
