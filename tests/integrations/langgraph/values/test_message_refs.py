"""Which messages trees hold: as whoever looks at every part of them finds it."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

from ortet.integrations.langgraph.values.message_refs import MessageRefs, MessagesOutOfOrder
from ortet.integrations.langgraph.values.parts import (
    FIRST_VALUE_NUMBER,
    PartStore,
    ValuePart,
    ranges_of,
)


def message(number: int, at: int, *, first: int | None = None) -> ValuePart:
    stored = None if first is None else {"$i": [first, "id"]}
    return ValuePart(number, {"role": "user"}, is_message=True, stored=stored, seq=at)


def bits(numbers: set[int]) -> int:
    return sum(1 << number for number in numbers)


class Telling:
    """Parts by chance, and of each the messages that it holds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.heap = PartStore(lambda *_: b"")
        self.said: dict[int, int] = {}  # the event of each message
        self.firsts: dict[int, int] = {}
        self.parts: dict[int, set[int]] = {}
        self.at = 0

    def add(self) -> None:
        self.at += self.chance.randrange(1, 3)
        number, way = self.heap.next_numbers[0], self.chance.randrange(4)
        if way < 2:
            self.said[number] = self.at
            self.firsts[number] = number
            self.heap.add(message(number, self.at))
        elif way == 2 and self.said:
            first = self.firsts[number] = self.chance.choice(list(self.said))
            self.heap.add(message(number, self.at, first=first))
        else:
            tree, holds = self.tree()
            self.parts[self.heap.next_numbers[1]] = holds
            self.heap.add(ValuePart(self.heap.next_numbers[1], tree, seq=self.at))

    def tree(self) -> tuple[Any, set[int]]:
        numbers, holds = list[int](), set[int]()
        for number in sorted(self.firsts):
            if self.chance.random() < 0.6:
                numbers.append(number)
                holds.add(self.firsts[number])
        rows: list[list[int]] = ranges_of(numbers) if numbers else []
        if self.parts and self.chance.random() < 0.7:
            part = self.chance.choice(list(self.parts))
            assert part >= FIRST_VALUE_NUMBER
            rows.insert(0, [part])
            holds |= self.parts[part]
        made: Any = self.chance.choice(
            [{"$l": rows}, {"$s": {"$l": rows}}, {"$d": [["b", {"$l": rows}]]}, {"a": 1, "b": rows}]
        )
        if "b" in made:
            part = self.chance.choice([*self.parts, *self.said, 0])
            made = {"a": ["text", {"$m": part}], "c": {"$b": ["msgpack", "AA=="]}}
            first = self.firsts.get(part)
            holds = self.parts.get(part, set() if first is None else {first})
        return made, holds


@pytest.mark.parametrize("seed", range(20))
def test_held_message_sets_agree_with_a_full_scan(seed: int) -> None:
    telling = Telling(seed)
    held = MessageRefs(telling.heap)
    for _ in range(30):
        for _ in range(telling.chance.randrange(1, 6)):
            telling.add()
        (one, first), (two, second) = telling.tree(), telling.tree()
        assert held.in_trees([one, two]) == bits(first | second)
        span = sorted(telling.chance.randrange(telling.at + 2) for _ in range(2))
        within = {n for n, at in telling.said.items() if span[0] <= at <= span[1]}
        assert held.in_events([(span[0], span[1])]) == bits(within)
        assert held.all_except(bits(first)) == bits(set(telling.said) - first)
        found = held.spans(bits(first), bits(second - first))
        covered = {n for n, at in telling.said.items() if any(a <= at <= b for a, b in found)}
        assert first <= covered
        assert not covered & (second - first)
        fewest = [n in first for n in telling.said if n in first | second]
        assert len(found) == sum(meant for meant, _ in groupby(fewest))


def test_messages_of_new_parts_are_included_before_they_are_added() -> None:
    heap = PartStore(lambda *_: b"")
    held = MessageRefs(heap)
    heap.add(message(0, 1))
    new = [message(1, 0, first=0), message(2, 0), ValuePart(FIRST_VALUE_NUMBER, {"$l": [[1, 3]]})]
    assert held.in_trees([{"$m": FIRST_VALUE_NUMBER}], new) == 1
    assert held.in_trees([{"$l": [[1, 2]]}], new) == 1
    assert held.in_trees([{"$l": [[2, 3]]}], new) == 0


@pytest.mark.parametrize(
    "parts",
    [
        [message(1, 1), message(0, 2)],
        [message(0, 2), message(1, 1)],
        [message(1 << 29, 1)],
        [
            message(0, 1),
            ValuePart(FIRST_VALUE_NUMBER + 1, {"$m": 0}),
            ValuePart(FIRST_VALUE_NUMBER, {"$m": 0}),
        ],
    ],
    ids=["numbers", "events", "far", "parts"],
)
def test_parts_numbered_out_of_order_are_refused(parts: list[ValuePart]) -> None:
    heap = PartStore(lambda *_: b"")
    held = MessageRefs(heap)
    for part in parts:
        heap.add(part)
    for _ in range(2):
        with pytest.raises(MessagesOutOfOrder):
            held.in_trees([{"$m": 0}])
