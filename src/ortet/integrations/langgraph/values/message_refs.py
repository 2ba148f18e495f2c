"""Computes which messages the trees of a thread contain; updated as parts are added.

A set of messages is an int with one bit for each message, at the number it was first stored under.
So set operations are fast even for long threads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ortet.integrations.langgraph.values.parts import FIRST_VALUE_NUMBER, PartStore, Tree, ValuePart
from ortet.journal.conversation.superseded import SeqRange

MessageSet = int

_MAX_MESSAGES = 1 << 24
"""Upper limit of valid message numbers; a larger one comes from another program."""


class MessagesOutOfOrder(Exception):
    """Raised if message numbers do not increase, as in records of another program."""


class MessageRefs:
    """Sets of messages of a thread, computed from its parts."""

    def __init__(self, part_store: PartStore) -> None:
        self._part_store = part_store
        self._all: MessageSet = 0
        self._numbers: list[int] = []  # numbers under which messages were first stored
        self._events: list[int] = []  # their events, in the same order
        self._original_numbers: dict[
            int, int
        ] = {}  # by later number of a message: its first number
        self._later_numbers: MessageSet = 0  # the set of these later numbers
        # parts that contain messages and are not messages
        self._messages_by_part: dict[int, MessageSet] = {}
        self._part_numbers: list[int] = []  # the numbers of these parts
        # for ranges that contain later numbers
        self._range_cache: dict[tuple[int, int], MessageSet] = {}
        self._superseded_cache: tuple[Sequence[SeqRange], MessageSet] = ((), 0)
        self._is_ordered = True

    def in_trees(self, trees: Iterable[Tree], new_parts: Sequence[ValuePart] = ()) -> MessageSet:
        """Return the messages in these trees, also in `new_parts` that are not added yet."""
        self._catch_up()
        return self._messages_in_trees(trees, new_parts)

    def in_events(self, spans: Iterable[SeqRange]) -> MessageSet:
        """Return the messages of these event ranges."""
        self._catch_up()
        messages = 0
        for first, last in spans:
            start, stop = bisect_left(self._events, first), bisect_right(self._events, last)
            if start < stop:
                messages |= _bit_range(self._numbers[start], self._numbers[stop - 1] + 1)
        return messages & self._all

    def superseded(self, spans: Sequence[SeqRange]) -> MessageSet:
        """Return the superseded messages. The result is cached, because it changes seldom."""
        if self._superseded_cache[0] is not spans:
            self._superseded_cache = spans, self.in_events(spans)
        return self._superseded_cache[1]

    def spans(self, wanted: MessageSet, others: MessageSet) -> list[list[int]]:
        """Return the events of the wanted messages as few spans that contain none of the others."""
        event_spans, at = list[list[int]](), 0
        while wanted:
            at = _lowest_bit(wanted)
            end = others >> at
            run = wanted & _bit_range(at, at + _lowest_bit(end)) if end else wanted
            event_spans.append([self._event(at), self._event(run.bit_length() - 1)])
            wanted ^= run
        return event_spans

    def all_except(self, messages: MessageSet) -> MessageSet:
        return self._all & ~messages

    def _event(self, number: int) -> int:
        return self._events[bisect_left(self._numbers, number)]

    def _catch_up(self) -> None:
        for part in self._part_store.take_new_parts():
            if part.is_message:
                self._add_message(part)
            elif messages := self._messages_in_part(part):
                self._is_ordered &= not self._part_numbers or part.number > self._part_numbers[-1]
                self._messages_by_part[part.number] = messages
                self._part_numbers.append(part.number)
        if not self._is_ordered:
            raise MessagesOutOfOrder

    def _add_message(self, part: ValuePart) -> None:
        number, first = part.number, first_of(part)
        if not 0 <= number < _MAX_MESSAGES:
            self._is_ordered = False
        elif number != first:
            self._original_numbers[number] = first
            self._later_numbers |= 1 << number
        elif self._numbers and (number <= self._numbers[-1] or part.seq < self._events[-1]):
            self._is_ordered = False
        else:
            self._numbers.append(number)
            self._events.append(part.seq)
            self._all |= 1 << number

    def _messages_in_part(self, part: ValuePart) -> MessageSet:
        try:
            return self._messages_in_trees([part.tree])
        except Exception:  # Another program wrote invalid records.
            return 0

    def _messages_in_trees(
        self, trees: Iterable[Tree], new_parts: Sequence[ValuePart] = ()
    ) -> MessageSet:
        queue, rows, messages = list(trees), dict[int, int](), 0
        for first, stop in _number_ranges(queue):
            if stop <= rows.get(first, first):
                continue
            rows[first] = stop
            if stop > self._part_store.next_numbers[first >= FIRST_VALUE_NUMBER]:
                for part in new_parts:
                    if not first <= part.number < stop:
                        continue
                    if part.is_message:
                        messages |= 1 << first_of(part)
                    else:
                        queue.append(part.tree)
        for first, stop in rows.items():
            messages |= (
                self._in_parts(first, stop)
                if first >= FIRST_VALUE_NUMBER
                else self._in_row(first, stop)
            )
        return messages & self._all

    def _in_parts(self, first: int, stop: int) -> MessageSet:
        messages = 0
        start, end = bisect_left(self._part_numbers, first), bisect_left(self._part_numbers, stop)
        for number in self._part_numbers[start:end]:
            messages |= self._messages_by_part[number]
        return messages

    def _in_row(self, first: int, stop: int) -> MessageSet:
        """Return the messages of a number range, with later numbers mapped to first ones."""
        stop = min(stop, self._part_store.next_numbers[0])
        wanted = _bit_range(first, stop)
        later = wanted & self._later_numbers
        if not later:
            return wanted
        messages = self._range_cache.get((first, stop))
        if messages is None:
            messages = wanted ^ later
            while later:
                number = _lowest_bit(later)
                messages |= 1 << self._original_numbers[number]
                later ^= 1 << number
            self._range_cache[first, stop] = messages
        return messages


def first_of(part: ValuePart) -> int:
    """Return the first number of a message, which has another if LangGraph gave it an id later."""
    return part.number if part.stored is part.tree else int(part.stored["$i"][0])


def _bit_range(start: int, stop: int) -> MessageSet:
    return (1 << stop) - (1 << start) if start < stop else 0


def _lowest_bit(messages: MessageSet) -> int:
    return (messages & -messages).bit_length() - 1


def _number_ranges(queue: list[Tree]) -> Iterator[tuple[int, int]]:
    """Yield the number ranges in trees until the queue is empty."""
    while queue:
        tree = queue.pop()
        if type(tree) is list:
            queue += tree
            continue
        if type(tree) is not dict:
            continue
        name = next(iter(tree)) if len(tree) == 1 else ""
        if name == "$l":
            for first, *end in tree[name]:
                yield first, end[0] if end else first + 1
        elif name == "$m":
            yield tree[name], tree[name] + 1
        elif name not in ("$b", "$o"):
            queue += tree.values()
