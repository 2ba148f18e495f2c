"""Caches lists of messages as they were last stored or returned.

A list that starts with the same objects as a cached list is known up to there. The lists are
compared as a whole, which is much faster than looking up each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress, count, islice
from operator import is_not
from typing import Any

from langchain_core.messages import BaseMessage

from ortet.integrations.langgraph.messages import Snapshot, state_of

MIN_CACHED_LENGTH = 16
"""Length of a list from which on caching pays."""
_MAX_CACHED_LISTS = 4


class MessageList:
    """Messages with their part numbers and snapshots.

    It keeps references to the objects, so their ids cannot be reused.
    """

    __slots__ = ("messages", "numbers", "snapshots")

    def __init__(
        self, messages: list[BaseMessage], numbers: list[int], snapshots: list[Snapshot]
    ) -> None:
        self.messages, self.numbers, self.snapshots = messages, numbers, snapshots

    def shared_length(self, value: Sequence[Any]) -> int:
        """Return how many of these same objects a list starts with."""
        apart = compress(count(), map(is_not, self.messages, value))
        return next(apart, min(len(self.messages), len(value)))

    def prefix(self, size: int) -> MessageList | None:
        """Return the first `size` messages, or None if one of them was changed."""
        then = self.snapshots[:size]
        if list(map(state_of, islice(self.messages, size))) != then:
            return None
        return MessageList(self.messages[:size], self.numbers[:size], then)


class MessageListCache:
    """The message lists of one thread; a graph and its subgraphs may have several."""

    def __init__(self) -> None:
        self._lists: list[MessageList] = []  # the most recent first

    def longest_prefix(self, value: Sequence[Any]) -> MessageList | None:
        """Return the cached messages that a list starts with, or None."""
        if len(value) < MIN_CACHED_LENGTH or not self._lists:
            return None
        size, row = max(
            ((row.shared_length(value), row) for row in self._lists), key=lambda one: one[0]
        )
        return row.prefix(size) if size >= MIN_CACHED_LENGTH else None

    def find(self, spans: Sequence[Sequence[int]]) -> list[BaseMessage] | None:
        """Return the cached messages of these [from, to) number ranges, or None."""
        size = sum(max(0, stop - start) for start, stop in spans)
        for row in self._lists if size >= MIN_CACHED_LENGTH else ():
            if size > len(row.numbers):  # Check before expanding the ranges, which may be huge.
                continue
            if row.numbers[:size] == list(chain.from_iterable(range(*span) for span in spans)):
                again = row.prefix(size)
                return None if again is None else again.messages
        return None

    def add(self, message_list: MessageList) -> None:
        """Add a list. It replaces the lists that it extends or copies."""
        head, size = message_list.messages[0], len(message_list.messages)
        rest = [o for o in self._lists if o.messages[0] is not head or len(o.messages) > size]
        self._lists = [message_list, *rest][:_MAX_CACHED_LISTS]
