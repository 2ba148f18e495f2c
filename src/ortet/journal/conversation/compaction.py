"""Compaction: a summary replaces old messages in the context.

A record says which messages were left out. Nothing is deleted. Only messages are affected: facts,
decisions, the plan and other durable records are not stored in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ortet._util.codec import Hasher
from ortet.errors import Corrupt, Invalid
from ortet.journal.conversation.text import clip, one_line, text_of
from ortet.journal.conversation.tool_calls import (
    group_messages,
    unanswered_calls,
    without_obsolete_results,
)
from ortet.journal.events import Event
from ortet.journal.state.records import Message, ToolCall, message_of

Summarise = Callable[[list[Message]], str]
"""Function that summarises messages.

An earlier summary is the first message; its `extra.summary` is True.
"""

SUMMARY_CHARS = 2000
_LINE = 160
_SYSTEM_ROLES = ("system", "developer")
_MAX_SYSTEM_MESSAGES = 16


class Compaction(msgspec.Struct, frozen=True):
    """Record of one compaction.

    Attributes:
        first: First event whose message was left out.
        last: Last event whose message was left out.
        count: Number of messages.
        digest: Digest of these messages.
        summary: Text in their place.
        before: Event number of the previous compaction, or 0.
        rules: Events of system messages, which stay in the context.
        seq: Number of its event.
        time: When it was made, in ns since 1970.
    """

    first: int
    last: int
    count: int
    digest: str
    summary: str
    before: int = 0
    rules: list[int] = []
    seq: int = 0
    time: int = 0


def compaction_of(event: Event) -> Compaction:
    """Return the record of a compaction event. An erased event gives an empty record."""
    data = event.data
    return Compaction(
        first=data.get("first", 0),
        last=data.get("last", 0),
        count=data.get("count", 0),
        digest=data.get("digest", ""),
        summary=data.get("summary", ""),
        before=data.get("before", 0),
        rules=data.get("rules", []),
        seq=event.seq,
        time=event.time,
    )


def compaction_data(compaction: Compaction) -> dict[str, Any]:
    """Return the event data of a compaction."""
    data: dict[str, Any] = msgspec.to_builtins(compaction)
    del data["seq"], data["time"]
    return data


def message_events(events: Iterable[Event]) -> list[Event]:
    """Return the message events, erased or not."""
    return [event for event in events if event.kind == "message"]


def select_for_compaction(events: Sequence[Event], keep_last: int) -> list[Event]:
    """Return the messages to leave out, so that the last `keep_last` messages stay.

    A tool call is never separated from its result, also if the result is still to come.
    """
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 0:
        raise Invalid("bad_count", f"keep_last={keep_last!r}: give a number from 0")
    if len(events) <= keep_last:
        return []
    messages = [message_of(event) for event in events]
    cut = events[-keep_last].seq if keep_last else events[-1].seq + 1
    calling: list[ToolCall] = []
    called = 0
    for message in messages:
        calling = unanswered_calls(calling, message)
        called = message.seq if message.role == "assistant" else called
    if calling:
        cut = min(cut, called)
    for group in group_messages(messages):
        first = min(message.seq for message in group)
        if first < cut <= max(message.seq for message in group):
            cut = first
    return [event for event in events if event.seq < cut]


def make_compaction(
    events: Sequence[Event], before: Compaction | None, summarise: Summarise, hasher: Hasher
) -> Compaction:
    """Return the compaction record that replaces these messages."""
    messages = without_obsolete_results([message_of(event) for event in events if not event.erased])
    earlier = [summary_message(before)] if before is not None and before.summary else []
    summary = summarise([*earlier, *messages])
    if not isinstance(summary, str):
        raise Invalid(
            "bad_summary",
            f"the summary is {type(summary).__name__}, not text: give a function of a list of "
            "messages that returns str",
        )
    system_messages = [message.seq for message in messages if message.role in _SYSTEM_ROLES]
    return Compaction(
        first=events[0].seq,
        last=events[-1].seq,
        count=len(events),
        digest=digest_of(events, hasher),
        summary=summary,
        before=before.seq if before else 0,
        rules=[*(before.rules if before else []), *system_messages][:_MAX_SYSTEM_MESSAGES],
    )


def digest_of(events: Iterable[Event], hasher: Hasher) -> str:
    """Return a digest of the event hashes. It stays valid when a message is erased later."""
    return hasher.oid(b"".join(event.hash for event in events)).hex()


def recover_messages(
    compaction: Compaction, events: Iterable[Event], hasher: Hasher
) -> list[Message]:
    """Return the messages that a compaction left out, except erased ones.

    Raises:
        Corrupt: kind "bad_compaction", if the messages do not match the digest.
    """
    messages = message_events(events)
    if compaction.digest and (len(messages), digest_of(messages, hasher)) != (
        compaction.count,
        compaction.digest,
    ):
        raise Corrupt(
            "bad_compaction",
            f"messages {compaction.first} to {compaction.last} are not those that compaction "
            f"{compaction.seq} left "
            "out: run `ortet verify`",
            seq=compaction.seq,
        )
    return [message_of(event) for event in messages if not event.erased]


def compactions(seq: int, read: Callable[[int, int], Iterable[Event]]) -> Iterator[Compaction]:
    """Yield the compaction at event `at` and all before it, newest first."""
    while seq:
        (event,) = read(seq - 1, seq)
        compaction = compaction_of(event)
        yield compaction
        seq = compaction.before
        if event.erased:  # the link to the previous one was erased with the body
            seq = max(
                (e.seq for e in read(0, compaction.seq - 1) if e.kind == event.kind), default=0
            )


def summary_message(compaction: Compaction) -> Message:
    """Return the summary as a user message. Some models refuse a late system message."""
    text = f"Summary of what was said before:\n{compaction.summary}"
    return Message(compaction.seq, "user", text, compaction.time, {"summary": True})


def extract_summary(messages: list[Message], limit: int = SUMMARY_CHARS) -> str:
    """Return a summary made of excerpts: the first message and the newest ones within `limit`."""
    earlier = ""
    if messages and messages[0].extra.get("summary"):
        earlier = clip(text_of(messages[0].content), limit // 2)
        messages = messages[1:]
    lines = [_line(message) for message in messages if message.role not in _SYSTEM_ROLES]
    lines = [line for line in lines if line]
    room = limit - len(earlier) - 1
    first, newest = lines[:1], []
    room -= sum(len(line) + 1 for line in first)
    for line in reversed(lines[1:]):
        if len(line) + 1 > room - len(_gap(len(lines))):
            break
        room -= len(line) + 1
        newest.append(line)
    left_out = len(lines) - len(first) - len(newest)
    middle = [_gap(left_out)] if left_out else []
    return clip("\n".join(filter(None, [earlier, *first, *middle, *reversed(newest)])), limit)


def _gap(count: int) -> str:
    return f"({count} more)"


def _line(message: Message) -> str:
    text = one_line(text_of(message.content), _LINE)
    return f"- {message.role}: {text}" if text else ""
