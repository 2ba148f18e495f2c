"""Lists of messages as they were last put or given out. A list that begins as one of them did is
known that far: it is compared as a whole, which costs a fraction of looking at each message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress, count, islice
from operator import is_not
from typing import Any

from langchain_core.messages import BaseMessage

from ortet.integrations.langgraph.messages import Snapshot, state_of

LEAST = 16
"""Messages of a list for which it pays."""
_MOST = 4


class Row:
    """Messages, the number of each, and what it held then. As it keeps the objects, no other one
    can come to be in place of one of them."""

    __slots__ = ("messages", "numbers", "then")

    def __init__(
        self, messages: list[BaseMessage], numbers: list[int], then: list[Snapshot]
    ) -> None:
        self.messages, self.numbers, self.then = messages, numbers, then

    def shared(self, value: Sequence[Any]) -> int:
        """With how many of these very objects a list begins."""
        apart = compress(count(), map(is_not, self.messages, value))
        return next(apart, min(len(self.messages), len(value)))

    def first(self, size: int) -> Row | None:
        """So many of them, unless somebody has changed one since."""
        then = self.then[:size]
        if list(map(state_of, islice(self.messages, size))) != then:
            return None
        return Row(self.messages[:size], self.numbers[:size], then)


class Rows:
    """Of one thread: its graph may have several such lists, and graphs inside of it too."""

    def __init__(self) -> None:
        self._rows: list[Row] = []  # the last one first

    def begun(self, value: Sequence[Any]) -> Row | None:
        """What is known of a list: the messages that it begins with."""
        if len(value) < LEAST or not self._rows:
            return None
        size, row = max(((row.shared(value), row) for row in self._rows), key=lambda one: one[0])
        return row.first(size) if size >= LEAST else None

    def found(self, spans: Sequence[Sequence[int]]) -> list[BaseMessage] | None:
        """The messages of these numbers, from each first to before its last."""
        size = sum(max(0, stop - start) for start, stop in spans)
        for row in self._rows if size >= LEAST else ():
            if size > len(row.numbers):  # before they are counted out: there may be no end of them
                continue
            if row.numbers[:size] == list(chain.from_iterable(range(*span) for span in spans)):
                again = row.first(size)
                return None if again is None else again.messages
        return None

    def add(self, row: Row) -> None:
        """In place of those that it goes on from, or is made anew of."""
        head, size = row.messages[0], len(row.messages)
        rest = [o for o in self._rows if o.messages[0] is not head or len(o.messages) > size]
        self._rows = [row, *rest][:_MOST]
