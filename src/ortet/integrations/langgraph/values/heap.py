"""The parts that the checkpoints of a thread are made of: each is stored once, under a number.

A value is a tree of JSON. What JSON has not, or is large, or is a message, stands in it as
{"$m": number}, a part; {"$l": [[from, to], …]}, a list of parts, where [number] is a part that is
the beginning of the list; {"$b": [type, base64]}, bytes of
LangGraph's serializer; {"$o": [type, id, size]}, such bytes in an object of the store;
{"$d": [[key, tree], …]}, a dict whose keys are in no order, or look like these: the journal sorts.
{"$s": tree} is what a channel that stores deltas was at some time.
{"$i": [number, id]} is a part: a message that was said without an id, which LangGraph gave it then.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from ortet.integrations.langgraph.messages import (
    MARK,
    Snapshot,
)
from ortet.integrations.langgraph.values.parts import (
    NotWhole,
    Part,
    Tree,
    key_of,
    loads,
    named,
)
from ortet.integrations.langgraph.values.rows import LEAST, Row, Rows

INLINE = 64
"""Bytes of a tree that is rather written again than given a number."""
FIRST = 1 << 30
"""The number of the first part that is no message."""


class Heap:
    """The parts of one thread. `load` gives the bytes of an object of the store. `lost`: not all of
    them were looked for, but those that were, and are not there, are these."""

    def __init__(self, load: Callable[[str, int], bytes]) -> None:
        self.next = [0, FIRST]  # messages are numbered by themselves: most lists of them are a row
        self.lost: set[int] | None = None
        self.rows = Rows()
        self._load = load
        self._parts: dict[int, Part] = {}
        self._known: dict[bytes, int] = {}  # by digest, of those worth finding again
        self._unknown: list[Part] = []  # to be put there when it is asked
        self._fresh: list[Part] = []  # of which nobody was told yet
        self._objects: dict[int, Part] = {}  # by id() of the message that a part keeps
        self._given_ids: set[int] = set()  # of messages without one: said by a turn that is over

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, part: Part) -> None:
        self._parts[part.number] = part
        kind = part.number >= FIRST
        self.next[kind] = max(self.next[kind], part.number + 1)
        self._unknown.append(part)
        self._fresh.append(part)
        if part.object is not None:
            self._objects[id(part.object)] = part
        if part.is_message and part.stored is not part.tree:
            self._given_ids.add(part.stored["$i"][0])

    def add_message(self, data: dict[str, Any], at: int) -> None:
        """From its event; one that LangGraph did not say, or that was erased, is none of ours."""
        marked = data.get("extra", {}).get(MARK)
        if isinstance(marked, dict) and isinstance(marked.get("n"), int):
            self.add(Part(marked["n"], data, is_message=True, at=at))

    def add_stored(self, number: int, tree: Tree, at: int) -> None:
        """From a record."""
        if type(tree) is dict and "$i" in tree:
            first, id_ = tree["$i"]
            if (said := self._parts.get(first)) is not None:
                self.add(Part(number, named(said.tree, id_), is_message=True, stored=tree, at=at))
        else:
            self.add(Part(number, tree, at=at))

    def take_over(self, other: Heap) -> None:
        """The messages that another one of the same thread has given out."""
        for key, part in other._objects.items():
            mine = self._parts.get(part.number)
            if mine is not None and mine.is_message and mine.tree == part.tree:
                mine.take_over(part)
                self._objects[key] = mine

    def unnamed(self, message: BaseMessage, data: dict[str, Any]) -> Part | None:
        """The part that kept this very object before it was given an id."""
        found = self._objects.get(id(message))
        if found is None or found.object is not message or not isinstance(message.id, str):
            return None
        return found if named(found.tree, message.id) == named(data, message.id) else None

    def fresh(self) -> list[Part]:
        """What was added since this was asked last."""
        found, self._fresh = self._fresh, []
        return found

    def part(self, number: int) -> Part | None:
        return self._parts.get(number)

    def known(self, key: bytes) -> int | None:
        """The number of a part by its digest."""
        for part in self._unknown:
            if part.is_message or len(part.raw) > INLINE:
                self._known[key_of(part)] = part.number
        self._unknown.clear()
        return self._known.get(key)

    def same(self, key: bytes, message: BaseMessage) -> int | None:
        """The number of a message that this one is again. One without an id is not what somebody
        has said before in the same words, and was given its id then."""
        number = self.known(key)
        return None if message.id is None and number in self._given_ids else number

    def learn(self, made: dict[bytes, int]) -> None:
        self._known.update(made)

    def holding(self, message: BaseMessage) -> Part | None:
        """The part that keeps this very object, as it is now."""
        found = self._objects.get(id(message))
        return found if found is not None and found.is_still(message) else None

    def hold(self, part: Part, message: BaseMessage, then: Snapshot) -> None:
        self._leave(part.object, part)
        part.keep(message, then)
        self._objects[id(message)] = part

    def _leave(self, message: BaseMessage | None, part: Part) -> None:
        if self._objects.get(id(message)) is part:
            del self._objects[id(message)]

    # reading

    def value(self, tree: Tree, serde: SerializerProtocol) -> Any:
        """What a tree stands for, made anew; parts that were erased are left out."""
        if type(tree) is list:
            return [self.value(one, serde) for one in tree]
        if type(tree) is not dict:
            return tree
        if len(tree) == 1:
            (name,) = tree
            if name.startswith("$"):
                return self._special(name, tree[name], serde)
        return {key: self.value(one, serde) for key, one in tree.items()}

    def _special(self, name: str, given: Any, serde: SerializerProtocol) -> Any:
        if name == "$l":
            return self._list(given, serde)
        if name == "$m":
            part = self._found(given)
            return None if part is None else self._given(part, serde)
        if name == "$s":
            return _DeltaSnapshot(self.value(given, serde))
        if name == "$d":
            return {key: self.value(one, serde) for key, one in given}
        data = b64decode(given[1]) if name == "$b" else self._load(given[1], given[2])
        return loads(serde, given[0], data)

    def _list(self, given: Iterable[list[int]], serde: SerializerProtocol) -> list[Any]:
        spans = self.ranges(given)
        if (again := self.rows.found(spans)) is not None:
            return again
        parts = list(self.parts(spans))
        found = [self._given(part, serde) for part in parts]
        if len(parts) == sum(stop - start for start, stop in spans):
            self.remember(list(found), [part.number for part in parts])
        return found

    def remember(self, value: list[Any], numbers: list[int], known: Row | None = None) -> None:
        """A list whose elements are these parts; the first of them are `known`."""
        if len(value) < LEAST:
            return
        size = len(known.numbers) if known is not None else 0
        then = known.then if known is not None else []
        for message, number in zip(value[size:], numbers[size:], strict=True):
            part = self._parts[number]
            if part.object is not message or part.then is None:
                return  # no message, or another one that says the same
            then.append(part.then)
        self.rows.add(Row(value, numbers, then))

    def _given(self, part: Part, serde: SerializerProtocol) -> Any:
        if not part.is_message:
            return self.value(part.tree, serde)
        before = part.object
        found = part.message()
        if found is not before:
            self._leave(before, part)
            self._objects[id(found)] = part
        return found

    def parts(self, ranges: Iterable[list[int]]) -> Iterator[Part]:
        for start, stop in self.ranges(ranges):
            wanted: Iterable[int] = range(start, stop)
            if stop - start > len(self._parts):  # a store that was tampered with must not hang
                wanted = sorted(number for number in self._parts if start <= number < stop)
                if self.lost is not None and stop - start > len(self._parts) + len(self.lost):
                    raise NotWhole
            for number in wanted:
                if (part := self._found(number)) is not None:
                    yield part

    def _found(self, number: int) -> Part | None:
        """None for one that was erased."""
        part = self._parts.get(number)
        if part is None and self.lost is not None and number not in self.lost:
            raise NotWhole
        return part

    def entries(self, tree: Tree) -> dict[str, Tree]:
        """Of a dict, whose values stay as they are; of anything else, none."""
        try:
            if type(tree) is dict and "$m" in tree:
                tree = self._parts[tree["$m"]].tree
            if type(tree) is not dict:
                return {}
            return dict(tree["$d"]) if "$d" in tree else tree
        except (LookupError, TypeError, ValueError):  # records that somebody else wrote
            return {}

    def ranges(self, given: Iterable[list[int]]) -> list[list[int]]:
        """All of a list, with what it begins with."""
        found = list(given)
        while found and len(found[0]) == 1:
            first = self._found(found[0][0])
            found[:1] = [] if first is None else first.tree["$l"]
        return found
