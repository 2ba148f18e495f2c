"""Which messages the trees of a thread hold, kept up as parts are added.

A set of messages is an int: the bit of the number under which it was said stands for each. So what
is done with sets costs next to nothing, however long the thread is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ortet.integrations.langgraph.values.heap import FIRST, Heap
from ortet.integrations.langgraph.values.parts import Part, Tree
from ortet.journal.conversation.superseded import Span

Set = int

_MOST = 1 << 24
"""No thread has so many messages: a number like that is somebody else's, and its bit too far."""


class NotInOrder(Exception):
    """Messages are numbered as they are said: what somebody else wrote is not."""


class Held:
    """Sets of the messages of a thread, whose parts are in `heap`."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._all: Set = 0
        self._numbers: list[int] = []  # under which messages were said
        self._events: list[int] = []  # in which they were, in the same order
        self._firsts: dict[int, int] = {}  # of a message by a number that it was given later
        self._given: Set = 0  # such numbers
        self._parts: dict[int, Set] = {}  # that hold messages, and are none
        self._order: list[int] = []  # their numbers
        self._rows: dict[tuple[int, int], Set] = {}  # that have numbers given later
        self._aside: tuple[Sequence[Span], Set] = ((), 0)
        self._is_ordered = True

    def of(self, trees: Iterable[Tree], new: Sequence[Part] = ()) -> Set:
        """The messages that trees hold, also in parts that are `new`, and not added yet."""
        self._catch_up()
        return self._reached(trees, new)

    def said_in(self, spans: Iterable[Span]) -> Set:
        """The messages of events."""
        self._catch_up()
        found = 0
        for first, last in spans:
            start, stop = bisect_left(self._events, first), bisect_right(self._events, last)
            if start < stop:
                found |= _range(self._numbers[start], self._numbers[stop - 1] + 1)
        return found & self._all

    def aside(self, spans: Sequence[Span]) -> Set:
        """The same for what is set aside, which is asked more often than it changes."""
        if self._aside[0] is not spans:
            self._aside = spans, self.said_in(spans)
        return self._aside[1]

    def spans(self, wanted: Set, others: Set) -> list[list[int]]:
        """The events of messages, as few spans in which none of the others is."""
        found, at = list[list[int]](), 0
        while wanted:
            at = _lowest(wanted)
            end = others >> at
            run = wanted & _range(at, at + _lowest(end)) if end else wanted
            found.append([self._event(at), self._event(run.bit_length() - 1)])
            wanted ^= run
        return found

    def without(self, some: Set) -> Set:
        return self._all & ~some

    def _event(self, number: int) -> int:
        return self._events[bisect_left(self._numbers, number)]

    def _catch_up(self) -> None:
        for part in self._heap.fresh():
            if part.is_message:
                self._add_message(part)
            elif found := self._held_by(part):
                self._is_ordered &= not self._order or part.number > self._order[-1]
                self._parts[part.number] = found
                self._order.append(part.number)
        if not self._is_ordered:
            raise NotInOrder

    def _add_message(self, part: Part) -> None:
        number, first = part.number, first_of(part)
        if not 0 <= number < _MOST:
            self._is_ordered = False
        elif number != first:
            self._firsts[number] = first
            self._given |= 1 << number
        elif self._numbers and (number <= self._numbers[-1] or part.at < self._events[-1]):
            self._is_ordered = False
        else:
            self._numbers.append(number)
            self._events.append(part.at)
            self._all |= 1 << number

    def _held_by(self, part: Part) -> Set:
        try:
            return self._reached([part.tree])
        except Exception:  # of records that somebody else wrote
            return 0

    def _reached(self, trees: Iterable[Tree], new: Sequence[Part] = ()) -> Set:
        queue, rows, found = list(trees), dict[int, int](), 0
        for first, stop in _rows(queue):
            if stop <= rows.get(first, first):
                continue
            rows[first] = stop
            if stop > self._heap.next[first >= FIRST]:
                for part in new:
                    if not first <= part.number < stop:
                        continue
                    if part.is_message:
                        found |= 1 << first_of(part)
                    else:
                        queue.append(part.tree)
        for first, stop in rows.items():
            found |= self._in_parts(first, stop) if first >= FIRST else self._in_row(first, stop)
        return found & self._all

    def _in_parts(self, first: int, stop: int) -> Set:
        found = 0
        start, end = bisect_left(self._order, first), bisect_left(self._order, stop)
        for number in self._order[start:end]:
            found |= self._parts[number]
        return found

    def _in_row(self, first: int, stop: int) -> Set:
        """Of numbers of messages; those that are given later stand for the first ones."""
        stop = min(stop, self._heap.next[0])
        wanted = _range(first, stop)
        later = wanted & self._given
        if not later:
            return wanted
        found = self._rows.get((first, stop))
        if found is None:
            found = wanted ^ later
            while later:
                number = _lowest(later)
                found |= 1 << self._firsts[number]
                later ^= 1 << number
            self._rows[first, stop] = found
        return found


def first_of(part: Part) -> int:
    """The number under which a message was said; LangGraph may have given it its id then."""
    return part.number if part.stored is part.tree else int(part.stored["$i"][0])


def _range(start: int, stop: int) -> Set:
    return (1 << stop) - (1 << start) if start < stop else 0


def _lowest(some: Set) -> int:
    return (some & -some).bit_length() - 1


def _rows(queue: list[Tree]) -> Iterator[tuple[int, int]]:
    """The ranges of numbers that trees have, until there is none in the queue."""
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
