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
    EXTRA_KEY,
    Snapshot,
)
from ortet.integrations.langgraph.values.parts import (
    PartNotLoaded,
    Tree,
    ValuePart,
    key_of,
    loads,
    with_message_id,
)
from ortet.integrations.langgraph.values.rows import (
    MIN_CACHED_LENGTH,
    MessageList,
    MessageListCache,
)

MAX_INLINE_TREE_BYTES = 64
"""Bytes of a tree that is rather written again than given a number."""
FIRST_VALUE_NUMBER = 1 << 30
"""The number of the first part that is no message."""


class PartStore:
    """The parts of one thread. `load` gives the bytes of an object of the store. `lost`: not all of
    them were looked for, but those that were, and are not there, are these."""

    def __init__(self, load: Callable[[str, int], bytes]) -> None:
        self.next_numbers = [
            0,
            FIRST_VALUE_NUMBER,
        ]  # messages are numbered by themselves: most lists of them are a row
        self.erased_numbers: set[int] | None = None
        self.message_lists = MessageListCache()
        self._load = load
        self._parts: dict[int, ValuePart] = {}
        self._number_by_digest: dict[bytes, int] = {}  # by digest, of those worth finding again
        self._undigested_parts: list[ValuePart] = []  # to be put there when it is asked
        self._new_parts: list[ValuePart] = []  # of which nobody was told yet
        self._part_by_object_id: dict[
            int, ValuePart
        ] = {}  # by id() of the message that a part keeps
        self._renumbered_messages: set[int] = (
            set()
        )  # of messages without one: said by a turn that is over

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, part: ValuePart) -> None:
        self._parts[part.number] = part
        kind = part.number >= FIRST_VALUE_NUMBER
        self.next_numbers[kind] = max(self.next_numbers[kind], part.number + 1)
        self._undigested_parts.append(part)
        self._new_parts.append(part)
        if part.object is not None:
            self._part_by_object_id[id(part.object)] = part
        if part.is_message and part.stored is not part.tree:
            self._renumbered_messages.add(part.stored["$i"][0])

    def add_message(self, data: dict[str, Any], seq: int) -> None:
        """From its event; one that LangGraph did not say, or that was erased, is none of ours."""
        marked = data.get("extra", {}).get(EXTRA_KEY)
        if isinstance(marked, dict) and isinstance(marked.get("n"), int):
            self.add(ValuePart(marked["n"], data, is_message=True, seq=seq))

    def add_stored(self, number: int, tree: Tree, seq: int) -> None:
        """From a record."""
        if type(tree) is dict and "$i" in tree:
            first, id_ = tree["$i"]
            if (said := self._parts.get(first)) is not None:
                self.add(
                    ValuePart(
                        number,
                        with_message_id(said.tree, id_),
                        is_message=True,
                        stored=tree,
                        seq=seq,
                    )
                )
        else:
            self.add(ValuePart(number, tree, seq=seq))

    def adopt_objects(self, other: PartStore) -> None:
        """The messages that another one of the same thread has given out."""
        for key, part in other._part_by_object_id.items():
            mine = self._parts.get(part.number)
            if mine is not None and mine.is_message and mine.tree == part.tree:
                mine.adopt_object(part)
                self._part_by_object_id[key] = mine

    def find_without_id(self, message: BaseMessage, data: dict[str, Any]) -> ValuePart | None:
        """The part that kept this very object before it was given an id."""
        found = self._part_by_object_id.get(id(message))
        if found is None or found.object is not message or not isinstance(message.id, str):
            return None
        return (
            found
            if with_message_id(found.tree, message.id) == with_message_id(data, message.id)
            else None
        )

    def take_new_parts(self) -> list[ValuePart]:
        """What was added since this was asked last."""
        found, self._new_parts = self._new_parts, []
        return found

    def part(self, number: int) -> ValuePart | None:
        return self._parts.get(number)

    def find_number(self, key: bytes) -> int | None:
        """The number of a part by its digest."""
        for part in self._undigested_parts:
            if part.is_message or len(part.raw) > MAX_INLINE_TREE_BYTES:
                self._number_by_digest[key_of(part)] = part.number
        self._undigested_parts.clear()
        return self._number_by_digest.get(key)

    def find_message_number(self, key: bytes, message: BaseMessage) -> int | None:
        """The number of a message that this one is again. One without an id is not what somebody
        has said before in the same words, and was given its id then."""
        number = self.find_number(key)
        return None if message.id is None and number in self._renumbered_messages else number

    def add_numbers(self, number_by_digest: dict[bytes, int]) -> None:
        self._number_by_digest.update(number_by_digest)

    def find_by_object(self, message: BaseMessage) -> ValuePart | None:
        """The part that keeps this very object, as it is now."""
        found = self._part_by_object_id.get(id(message))
        return found if found is not None and found.is_unchanged(message) else None

    def keep_object(self, part: ValuePart, message: BaseMessage, snapshot: Snapshot) -> None:
        self._forget_object(part.object, part)
        part.keep_object(message, snapshot)
        self._part_by_object_id[id(message)] = part

    def _forget_object(self, message: BaseMessage | None, part: ValuePart) -> None:
        if self._part_by_object_id.get(id(message)) is part:
            del self._part_by_object_id[id(message)]

    # reading

    def decode(self, tree: Tree, serde: SerializerProtocol) -> Any:
        """What a tree stands for, made anew; parts that were erased are left out."""
        if type(tree) is list:
            return [self.decode(one, serde) for one in tree]
        if type(tree) is not dict:
            return tree
        if len(tree) == 1:
            (name,) = tree
            if name.startswith("$"):
                return self._special(name, tree[name], serde)
        return {key: self.decode(one, serde) for key, one in tree.items()}

    def _special(self, name: str, payload: Any, serde: SerializerProtocol) -> Any:
        if name == "$l":
            return self._list(payload, serde)
        if name == "$m":
            part = self._find_part(payload)
            return None if part is None else self._decode_part(part, serde)
        if name == "$s":
            return _DeltaSnapshot(self.decode(payload, serde))
        if name == "$d":
            return {key: self.decode(one, serde) for key, one in payload}
        data = b64decode(payload[1]) if name == "$b" else self._load(payload[1], payload[2])
        return loads(serde, payload[0], data)

    def _list(self, given: Iterable[list[int]], serde: SerializerProtocol) -> list[Any]:
        spans = self.ranges(given)
        if (again := self.message_lists.find(spans)) is not None:
            return again
        parts = list(self.parts(spans))
        found = [self._decode_part(part, serde) for part in parts]
        if len(parts) == sum(stop - start for start, stop in spans):
            self.remember_list(list(found), [part.number for part in parts])
        return found

    def remember_list(
        self, value: list[Any], numbers: list[int], known: MessageList | None = None
    ) -> None:
        """A list whose elements are these parts; the first of them are `known`."""
        if len(value) < MIN_CACHED_LENGTH:
            return
        size = len(known.numbers) if known is not None else 0
        then = known.snapshots if known is not None else []
        for message, number in zip(value[size:], numbers[size:], strict=True):
            part = self._parts[number]
            if part.object is not message or part.object_snapshot is None:
                return  # no message, or another one that says the same
            then.append(part.object_snapshot)
        self.message_lists.add(MessageList(value, numbers, then))

    def _decode_part(self, part: ValuePart, serde: SerializerProtocol) -> Any:
        if not part.is_message:
            return self.decode(part.tree, serde)
        before = part.object
        found = part.message()
        if found is not before:
            self._forget_object(before, part)
            self._part_by_object_id[id(found)] = part
        return found

    def parts(self, ranges: Iterable[list[int]]) -> Iterator[ValuePart]:
        for start, stop in self.ranges(ranges):
            wanted: Iterable[int] = range(start, stop)
            if stop - start > len(self._parts):  # a store that was tampered with must not hang
                wanted = sorted(number for number in self._parts if start <= number < stop)
                if self.erased_numbers is not None and stop - start > len(self._parts) + len(
                    self.erased_numbers
                ):
                    raise PartNotLoaded
            for number in wanted:
                if (part := self._find_part(number)) is not None:
                    yield part

    def _find_part(self, number: int) -> ValuePart | None:
        """None for one that was erased."""
        part = self._parts.get(number)
        if part is None and self.erased_numbers is not None and number not in self.erased_numbers:
            raise PartNotLoaded
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
            first = self._find_part(found[0][0])
            found[:1] = [] if first is None else first.tree["$l"]
        return found
