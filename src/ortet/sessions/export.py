"""What was said in a session, whole, in the shapes that model APIs take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec.structs import replace

from ortet._util.validation import FLAG, must_be
from ortet.errors import Invalid
from ortet.journal import spill
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.conversation.provider_formats import fit, for_chat, for_parts
from ortet.journal.conversation.providers import chat, parts, responses
from ortet.journal.conversation.superseded import is_aside
from ortet.journal.events import Event
from ortet.journal.state.records import Message
from ortet.journal.state.reducers import message_of
from ortet.sessions.actions.artifacts import Content, load
from ortet.sessions.recollect import last_compaction, rules_of
from ortet.sessions.writing import telling

if TYPE_CHECKING:
    from ortet.sessions.reader import View

Format = Literal["openai", "openai-responses", "anthropic"]

_SEALS = {"thinking": "signature", "redacted_thinking": "data", "reasoning": "encrypted_content"}
"""Kinds of thoughts, and what each is known by."""
_BEGINNING = "(What was said before is not here.)"


def export_messages(view: View, format: Format, *, whole: bool) -> Any:
    """See View.export_messages."""
    if format not in get_args(Format):
        raise Invalid("bad_format", f"{format!r}: give one of {', '.join(get_args(Format))}")
    must_be(FLAG, whole=whole)
    said = list(_said(view, whole=whole))
    if format == "openai":
        return _sayable(chat(fit(_with_thoughts(said), for_chat)))
    if format == "openai-responses":
        return responses(fit(_with_thoughts(said, "reasoning"), _for_items))
    told = parts(fit(_with_thoughts(said, "thinking", "redacted_thinking"), for_parts))
    told["messages"] = list(_alternating(told["messages"]))
    return told


def _for_items(part: dict[str, Any]) -> dict[str, Any]:
    return part if part.get("type") == "reasoning" else for_chat(part)


def _said(view: View, *, whole: bool) -> Iterator[Message]:
    """Messages, and thoughts that an API takes back as messages of their own; what was cut off and
    lies in the store is put back."""
    since = 0 if whole else view.mind.core.since
    if not whole:
        yield from rules_of(view)
        past = last_compaction(view)
        if past is not None and past.summary:
            yield summary_message(past)
    for event in view.events(since):
        if event.erased or is_aside(view.mind.core.aside, event.seq):
            continue
        if event.kind == "message":
            yield message_of(_whole(view, event))
        elif event.kind == "thought" and (thought := _thought(_whole(view, event))) is not None:
            yield thought


def _whole(view: View, event: Event) -> Event:
    if not event.refs:  # else anybody could name what is in the store
        return event
    if spill.BESIDE not in event.data:
        return replace(event, data=telling.whole(view.hub, event))

    def read(named: dict[str, Any]) -> bytes:
        return load(view.hub.objects, Content(named["oid"], named["size"]))

    return replace(event, data=spill.whole(event.data, read))


def _thought(event: Event) -> Message | None:
    """One whose model gave something to know it by; others are no API's concern."""
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
    """An item as its API takes it, whatever else was written down with it."""
    summary = part.get("summary")
    told = [one for one in summary if _is_summary(one)] if isinstance(summary, list) else []
    known = {key: part.get(key) for key in ("id", "encrypted_content")}
    texts = {key: value for key, value in known.items() if isinstance(value, str)}
    return {"type": "reasoning", "id": id_, "summary": told, **texts}


def _is_summary(one: Any) -> bool:
    return _type(one) == "summary_text" and isinstance(one.get("text"), str)


def _with_thoughts(said: list[Message], *kinds: str) -> Iterator[Message]:
    """Of all thoughts only those of these kinds, which their model has signed or sealed: an API
    takes back no others."""
    for message in said:
        if message.role != "assistant" or not isinstance(message.content, list):
            yield message
            continue
        kept = [part for part in message.content if _is_taken(part, kinds)]
        if kept or not message.content:
            yield replace(message, content=kept)


def _is_taken(part: Any, kinds: tuple[str, ...]) -> bool:
    seal = _SEALS.get(_type(part))
    return seal is None or (_type(part) in kinds and isinstance(part.get(seal), str))


def _type(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else ""
    return kind if isinstance(kind, str) else ""


def _sayable(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assistants say text, there, and only who calls something may say nothing."""
    for one in messages:
        if one["role"] == "assistant" and isinstance(one["content"], list):
            one["content"] = [part for part in one["content"] if _type(part) == "text"] or None
        if not one["content"] and not one.get("tool_calls"):
            one["content"] = ""
    return messages


def _alternating(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A user begins, and results come before what else a user says."""
    if messages and messages[0]["role"] != "user":
        yield {"role": "user", "content": [{"type": "text", "text": _BEGINNING}]}
    for one in messages:
        content = one["content"]
        if one["role"] == "user":
            content = sorted(content, key=lambda part: part.get("type") != "tool_result")
        yield {"role": one["role"], "content": content}
