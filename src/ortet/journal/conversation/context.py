"""Select the messages for a model call within a number of tokens.

The context has system messages, the summary and the newest messages. Every tool call is next to its
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ortet.errors import Invalid
from ortet.journal.conversation.provider_formats import to_chat_completions, to_content_parts
from ortet.journal.conversation.superseded import SeqRange, is_superseded
from ortet.journal.conversation.text import TokenCounter, check_tokens, clip, message_tokens
from ortet.journal.conversation.tool_calls import group_messages, without_obsolete_results
from ortet.journal.events import Event
from ortet.journal.state.records import Message, message_of

_FIRST_PAGE_EVENTS = 256
_MIN_MESSAGES = 256
"""Smallest number of messages to read, so that a very long result still finds its call."""


class ModelContext(msgspec.Struct, frozen=True):
    """Messages for one model call. Iterating yields `messages`.

    Attributes:
        messages: The messages, in order.
        tokens: Estimated size.
        left_out: True if older messages did not fit.
        stable: Number of messages at the start that only grow between calls, so that the prompt
            cache of a provider stays valid. The messages after them were recalled for this call,
            with the plan and open effects.
        facts: Texts of the recalled facts.
        episodes: Texts of the recalled episodes.
        said: Texts of the recalled messages.
    """

    messages: list[Message]
    tokens: int
    left_out: bool = False
    stable: int = 0
    facts: list[str] = []
    episodes: list[str] = []
    said: list[str] = []

    def chat(self) -> list[dict[str, Any]]:
        """Return the messages in the format of chat completions: [{"role", "content", ...}]."""
        return to_chat_completions(self.messages)

    def parts(self) -> dict[str, Any]:
        """Return {"system", "messages"}, with content as lists of parts.

        The end of the stable messages is marked for the prompt cache.
        """
        return to_content_parts(self.messages, self.stable)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


def newest_first(
    read: Callable[[int, int], Iterable[Event]],
    since: int,
    last: int,
    *,
    superseded: Sequence[SeqRange] = (),
    page: int = _FIRST_PAGE_EVENTS,
) -> Iterator[Message]:
    """Yield messages from newest to oldest, without superseded ones.

    Events are read in pages, so that the cost depends on the messages used and not on the length.
    """
    upto = last
    while upto > since:
        after = max(since, upto - page)
        for event in reversed(list(read(after, upto))):
            if (
                event.kind == "message"
                and not event.erased
                and not is_superseded(superseded, event.seq)
            ):
                yield message_of(event)
        upto, page = after, page * 2


def build_context(
    newest: Iterator[Message],
    *,
    rules: Sequence[Message] = (),
    summary: Message | None = None,
    tokens: int,
    count: TokenCounter,
) -> ModelContext:
    """Return system messages, summary and the newest groups of messages that fit.

    The newest group is cut if it is too long. Raises Invalid if it does not fit even then.
    """
    check_tokens(tokens)
    first = [*rules]
    room = tokens - sum(message_tokens(message, count) for message in first)
    if summary is not None:
        fitting = _cut([summary], max(room // 2, 0), count)
        first += fitting
        room -= sum(message_tokens(message, count) for message in fitting)
    read, more = _read_newest(newest, room, count)
    whole = group_messages(without_obsolete_results(read))
    chosen: list[Message] = []
    for group in reversed(whole):
        size = sum(message_tokens(message, count) for message in group)
        if size > room and not chosen:
            group = _cut(group, room, count)  # noqa: PLW2901 the newest is always there
            size = sum(message_tokens(message, count) for message in group)
            if not group:
                raise _too_few(tokens)
        if size > room:
            more = True
            break
        room -= size
        chosen[:0] = group
    messages = [*first, *chosen]
    return ModelContext(messages, tokens - room, left_out=more, stable=len(messages))


def _read_newest(
    newest: Iterator[Message], tokens_left: int, count: TokenCounter
) -> tuple[list[Message], bool]:
    """Return the newest messages that fill `tokens_left`, in order, and True if there are more."""
    messages: list[Message] = []
    for message in newest:
        if tokens_left < 0 and len(messages) >= _MIN_MESSAGES:
            return messages[::-1], True
        messages.append(message)
        tokens_left -= message_tokens(message, count)
    return messages[::-1], False


def _cut(group: Sequence[Message], tokens_left: int, count: TokenCounter) -> list[Message]:
    """Return the group with its longest texts cut so that it fits, or [] if it cannot fit."""

    def fits(limit: int) -> bool:
        return (
            sum(message_tokens(_clipped(message, limit), count) for message in group) <= tokens_left
        )

    high = max((_longest(message.content) for message in group), default=0)
    if fits(high):
        return list(group)
    low = 0
    if not fits(low):
        return []
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return [_clipped(message, low) for message in group]


def _clipped(message: Message, limit: int) -> Message:
    content = _clip(message.content, limit)
    if content == message.content:
        return message
    extra = {**message.extra, "clipped": True}
    return msgspec.structs.replace(message, content=content, extra=extra)


def _clip(content: Any, limit: int) -> Any:
    """Cut texts and results. Arguments of a call are never cut: that would be another call."""
    if isinstance(content, str):
        return clip(content, limit)
    if isinstance(content, list):
        return [_clip(part, limit) for part in content]
    if isinstance(content, dict) and content.get("type") == "text":
        return {**content, "text": _clip(content.get("text"), limit)}
    if isinstance(content, dict) and content.get("type") == "tool_result":
        return {**content, "content": _clip(content.get("content"), limit)}
    return content


def _longest(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return max((_longest(part) for part in content), default=0)
    if isinstance(content, dict):
        return max(_longest(content.get("text")), _longest(content.get("content")))
    return 0


def _too_few(tokens: int) -> Invalid:
    return Invalid(
        "too_few_tokens",
        f"the newest message does not fit {tokens} tokens, even when cut: give more",
        tokens=tokens,
    )
