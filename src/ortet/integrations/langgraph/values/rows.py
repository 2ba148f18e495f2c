"""Lists of messages as they were last put or given out. A list that begins as one of them did is
known that far: it is compared as a whole, which costs a fraction of looking at each message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress, count, islice
from operator import is_not
from typing import Any

from langchain_core.messages import BaseMessage

from ortet.integrations.langgraph.messages import Snapshot, state_of

MIN_CACHED_LENGTH = 16
"""Messages of a list for which it pays."""
_MAX_CACHED_LISTS = 4


class MessageList:
    """Messages, the number of each, and what it held then. As it keeps the objects, no other one
    can come to be in place of one of them."""

    __slots__ = ("messages", "numbers", "snapshots")

    def __init__(
        self, messages: list[BaseMessage], numbers: list[int], snapshots: list[Snapshot]
    ) -> None:
        self.messages, self.numbers, self.snapshots = messages, numbers, snapshots

    def shared_length(self, value: Sequence[Any]) -> int:
        """With how many of these very objects a list begins."""
        apart = compress(count(), map(is_not, self.messages, value))
        return next(apart, min(len(self.messages), len(value)))

    def prefix(self, size: int) -> MessageList | None:
        """So many of them, unless somebody has changed one since."""
        then = self.snapshots[:size]
        if list(map(state_of, islice(self.messages, size))) != then:
            return None
        return MessageList(self.messages[:size], self.numbers[:size], then)


class MessageListCache:
    """Of one thread: its graph may have several such lists, and graphs inside of it too."""

    def __init__(self) -> None:
        self._lists: list[MessageList] = []  # the last one first

    def longest_prefix(self, value: Sequence[Any]) -> MessageList | None:
        """What is known of a list: the messages that it begins with."""
        if len(value) < MIN_CACHED_LENGTH or not self._lists:
            return None
        size, row = max(
            ((row.shared_length(value), row) for row in self._lists), key=lambda one: one[0]
        )
        return row.prefix(size) if size >= MIN_CACHED_LENGTH else None

    def find(self, spans: Sequence[Sequence[int]]) -> list[BaseMessage] | None:
        """The messages of these numbers, from each first to before its last."""
        size = sum(max(0, stop - start) for start, stop in spans)
        for row in self._lists if size >= MIN_CACHED_LENGTH else ():
            if size > len(row.numbers):  # before they are counted out: there may be no end of them
                continue
            if row.numbers[:size] == list(chain.from_iterable(range(*span) for span in spans)):
                again = row.prefix(size)
                return None if again is None else again.messages
        return None

    def add(self, message_list: MessageList) -> None:
        """In place of those that it goes on from, or is made anew of."""
        head, size = message_list.messages[0], len(message_list.messages)
        rest = [o for o in self._lists if o.messages[0] is not head or len(o.messages) > size]
        self._lists = [message_list, *rest][:_MAX_CACHED_LISTS]
