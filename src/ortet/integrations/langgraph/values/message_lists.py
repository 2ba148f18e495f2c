"""Recognises lists of messages that were stored or returned before.

A list that starts with the objects of a known list is known up to there. The lists are compared as
a whole, which is much faster than looking up each message. The messages themselves are referenced
weakly: those of a returned list belong to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, count, islice
from operator import call, is_not
from typing import Any
from weakref import ref

from langchain_core.messages import BaseMessage

from ortet.integrations.langgraph.messages import Snapshot, state_of

MIN_CACHED_LENGTH = 16
"""Length of a list from which on caching pays."""
_MAX_CACHED_LISTS = 4


class MessageList:
    """Messages with their part numbers and the snapshots that they have if nobody changed them."""

    __slots__ = ("_positions", "numbers", "refs", "snapshots")

    def __init__(
        self,
        refs: list[ref[BaseMessage]],
        numbers: list[int],
        snapshots: list[Snapshot],
    ) -> None:
        self.refs, self.numbers, self.snapshots = refs, numbers, snapshots
        self._positions: dict[int, int] | None = None  # by id() of a message

    def shared_length(self, value: Sequence[Any]) -> int:
        """Return how many of these same objects a list starts with."""
        apart = compress(count(), map(is_not, map(call, self.refs), value))
        return next(apart, min(len(self.refs), len(value)))

    def prefix(self, value: Sequence[Any], size: int) -> MessageList | None:
        """Return the first `size` messages, which `value` has, or None if one was changed."""
        expected = self.snapshots[:size]
        if list(map(state_of, islice(value, size))) != expected:
            return None
        return MessageList(self.refs[:size], self.numbers[:size], expected)

    def find_number(self, message: BaseMessage) -> int | None:
        """Return the part number of this same object, if nobody changed it."""
        if self._positions is None:
            self._positions = {id(one()): at for at, one in enumerate(self.refs)}
        at = self._positions.get(id(message))
        if at is None or self.refs[at]() is not message or state_of(message) != self.snapshots[at]:
            return None
        return self.numbers[at]


class MessageListCache:
    """The message lists of one thread; a graph and its subgraphs may have several.

    Lists that were put and lists that were returned are kept apart, so that a program that only
    reads does not displace the list of a running graph.
    """

    def __init__(self) -> None:
        self._put_lists: list[MessageList] = []  # the most recent first
        self._returned_lists: list[MessageList] = []

    def longest_prefix(self, value: Sequence[Any]) -> MessageList | None:
        """Return the known messages that a list starts with, or None."""
        lists = [*self._put_lists, *self._returned_lists]
        if len(value) < MIN_CACHED_LENGTH or not lists:
            return None
        size, longest = max(
            ((one.shared_length(value), one) for one in lists), key=lambda pair: pair[0]
        )
        return longest.prefix(value, size) if size >= MIN_CACHED_LENGTH else None

    def find_number(self, message: BaseMessage) -> int | None:
        """Return the part number of an unchanged message of a returned list, or None."""
        numbers = (one.find_number(message) for one in self._returned_lists)
        return next((number for number in numbers if number is not None), None)

    def add_put(self, message_list: MessageList) -> None:
        """Add a list that was stored. It replaces the lists that it extends or copies."""
        head, size = message_list.refs[0](), len(message_list.refs)
        rest = [
            one
            for one in _living(self._put_lists)
            if one.refs[0]() is not head or len(one.refs) > size
        ]
        self._put_lists = [message_list, *rest][:_MAX_CACHED_LISTS]

    def add_returned(self, message_list: MessageList) -> None:
        """Add a list of new objects that a caller gets."""
        self._returned_lists = [message_list, *_living(self._returned_lists)][:_MAX_CACHED_LISTS]

    def adopt(self, other: MessageListCache, is_known: Callable[[int], bool]) -> None:
        """Add the lists of another cache whose part numbers are all known."""
        for one in reversed(other._returned_lists):
            if all(map(is_known, one.numbers)):
                self.add_returned(one)


def _living(lists: list[MessageList]) -> Iterator[MessageList]:
    """Yield the lists whose first message still exists."""
    return (one for one in lists if one.refs[0]() is not None)
