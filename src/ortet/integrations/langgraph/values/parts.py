"""One part of a checkpoint: its stored form and, for a message, its object."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any
from weakref import ref

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from ortet._util.codec import Hasher
from ortet.errors import Refused
from ortet.integrations.langgraph.messages import (
    EXTRA_KEY,
    MessageTemplate,
    Snapshot,
    matches_snapshot,
    message_of,
    snapshot,
)
from ortet.integrations.langgraph.values.message_lists import (
    MIN_CACHED_LENGTH,
    MessageList,
    MessageListCache,
)

Tree = Any

encode = msgspec.msgpack.Encoder(order="deterministic").encode
digest = Hasher().oid


class PartNotLoaded(Exception):
    """Raised if a part was not loaded: the whole journal has to be read."""


class ValuePart:
    """A part of a value. `tree` is the message data if the part is a message.

    Every reader gets a message of its own, so nobody can change what another one holds. `object` is
    the message that was put last. It is only compared with the messages of the next put.
    """

    __slots__ = (
        "_raw",
        "_template",
        "is_message",
        "number",
        "object",
        "seq",
        "stored",
        "tree",
    )

    def __init__(
        self,
        number: int,
        tree: Tree,
        *,
        is_message: bool = False,
        stored: Tree = None,
        seq: int = 0,
    ) -> None:
        self.number = number
        self.seq = seq  # event that has the part
        self.tree = tree
        self.is_message = is_message
        self.stored = tree if stored is None else stored  # the form in the journal
        self.object: BaseMessage | None = None
        self._template: MessageTemplate | None = None
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode(self.tree)
        return self._raw

    @property
    def template(self) -> MessageTemplate:
        """Makes the messages that readers get."""
        if self._template is None:
            message = message_of(self.tree)
            self._template = MessageTemplate(message, snapshot(message))
        return self._template

    def keep_object(self, message: BaseMessage, object_snapshot: Snapshot) -> None:
        """Remember the object that was put, with its fields at that moment."""
        self.object = message
        self._template = MessageTemplate(message, object_snapshot)

    def adopt_template(self, other: ValuePart) -> None:
        self._template = other._template


def loads(serde: SerializerProtocol, kind: str, data: bytes) -> Any:
    """Load a serialized value.

    Raises:
        Refused: "not_loaded" for pickles, which can run code, unless the serializer allows them.
    """
    try:
        return serde.loads_typed((kind, data))
    except NotImplementedError as error:
        raise Refused(
            "not_loaded",
            f"a value of this thread is stored as {kind!r}, which is not read unless it is asked "
            "for: give OrtetSaver(serde=JsonPlusSerializer(pickle_fallback=True)) if you trust the "
            "store",
        ) from error


def key_of(part: ValuePart) -> bytes:
    """Return the digest of a part's content, without its number."""
    tree = part.tree
    if part.is_message:
        rest = {name: one for name, one in tree["extra"][EXTRA_KEY].items() if name != "n"}
        return digest(encode({**tree, "extra": {**tree["extra"], EXTRA_KEY: rest}}))
    return digest(part.raw)


def with_message_id(data: dict[str, Any], id_: str) -> dict[str, Any]:
    """Return message data with this id and without its number."""
    rest = {name: one for name, one in data["extra"][EXTRA_KEY].items() if name != "n"}
    return {**data, "extra": {**data["extra"], EXTRA_KEY: {**rest, "id": rest.get("id", id_)}}}


def ranges_of(numbers: list[int]) -> list[list[int]]:
    """Return the numbers as [from, to) pairs."""
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1 and numbers == list(range(first, last + 1)):
        return [[first, last + 1]]  # the most frequent case
    ranges = [[numbers[0], numbers[0] + 1]]
    for before, number in pairwise(numbers):
        if number == before + 1:
            ranges[-1][1] = number + 1
        else:
            ranges.append([number, number + 1])
    return ranges


# The parts that the checkpoints of a thread consist of; each is stored once, under a number.
#
# A value is encoded as a tree of JSON. A dict with one of these keys is a special node:
#
# - {"$m": number} is a part: a message, a large value, or one that JSON cannot represent.
# - {"$l": [[from, to], …]} is a list of parts. A first element [number] is a part that is itself a
#   list and forms the beginning.
# - {"$b": [type, base64]} is bytes of LangGraph's serializer.
# - {"$o": [type, id, size]} is such bytes in an object of the store.
# - {"$d": [[key, tree], …]} is a dict whose keys are not sorted or look like these. The journal
# sorts
#   the keys of plain dicts.
# - {"$s": tree} is a complete value of a channel that stores deltas.
# - {"$i": [number, id]} is a part: an earlier message without an id, with the id that LangGraph
# gave
#   it later.

MAX_INLINE_TREE_BYTES = 64
"""Size up to which a tree is repeated instead of stored as a part."""
FIRST_VALUE_NUMBER = 1 << 30
"""Number of the first part that is not a message."""


class PartStore:
    """The parts of one thread.

    `load` returns the bytes of an object of the store. If only some parts were loaded,
    `erased_numbers` is the set of those that were looked for and not found. Otherwise it is None.
    """

    def __init__(self, load: Callable[[str, int], bytes]) -> None:
        self.next_numbers = [
            0,
            FIRST_VALUE_NUMBER,
        ]  # Messages have numbers of their own, so that most message lists are one range.
        self.erased_numbers: set[int] | None = None
        self.message_lists = MessageListCache()
        self._load = load
        self._parts: dict[int, ValuePart] = {}
        self._number_by_digest: dict[bytes, int] = {}  # of parts worth deduplicating
        self._undigested_parts: list[ValuePart] = []  # added to that dict on the next lookup
        self._new_parts: list[ValuePart] = []  # not yet returned by `take_new_parts`
        # by id() of a message object that was put, or returned without an id
        self._tracked_objects: dict[int, tuple[ref[BaseMessage], ValuePart]] = {}
        self._renumbered_messages: set[int] = (
            set()
        )  # messages stored without an id that got one later; their turn is over

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, part: ValuePart) -> None:
        self._parts[part.number] = part
        kind = part.number >= FIRST_VALUE_NUMBER
        self.next_numbers[kind] = max(self.next_numbers[kind], part.number + 1)
        self._undigested_parts.append(part)
        self._new_parts.append(part)
        if part.object is not None:
            self._tracked_objects[id(part.object)] = ref(part.object), part
        if part.is_message and part.stored is not part.tree:
            self._renumbered_messages.add(part.stored["$i"][0])

    def add_message(self, data: dict[str, Any], seq: int) -> None:
        """Add a message from its event.

        Ignore it if LangGraph did not write it or it was erased.
        """
        marked = data.get("extra", {}).get(EXTRA_KEY)
        if isinstance(marked, dict) and isinstance(marked.get("n"), int):
            self.add(ValuePart(marked["n"], data, is_message=True, seq=seq))

    def add_stored(self, number: int, tree: Tree, seq: int) -> None:
        """Add a part from a record."""
        if type(tree) is dict and "$i" in tree:
            first, id_ = tree["$i"]
            if (original := self._parts.get(first)) is not None:
                self.add(
                    ValuePart(
                        number,
                        with_message_id(original.tree, id_),
                        is_message=True,
                        stored=tree,
                        seq=seq,
                    )
                )
        else:
            self.add(ValuePart(number, tree, seq=seq))

    def adopt_objects(self, other: PartStore) -> None:
        """Recognise the messages that another store of the same thread has returned."""

        def is_known(number: int) -> bool:
            mine, part = self._parts.get(number), other._parts[number]
            return mine is not None and mine.is_message and mine.tree == part.tree

        for reference, part in list(other._tracked_objects.values()):
            message = reference()
            if message is not None and is_known(part.number):
                mine = self._parts[part.number]
                mine.adopt_template(part)
                self._track_returned(mine, message)
        self.message_lists.adopt(other.message_lists, is_known)

    def find_without_id(self, message: BaseMessage, data: dict[str, Any]) -> ValuePart | None:
        """Return the part that tracked this same object before it got an id."""
        part = self._tracked_part(message)
        if part is None or not isinstance(message.id, str):
            return None
        return (
            part
            if with_message_id(part.tree, message.id) == with_message_id(data, message.id)
            else None
        )

    def take_new_parts(self) -> list[ValuePart]:
        """Return the parts that were added since the last call."""
        new_parts, self._new_parts = self._new_parts, []
        return new_parts

    def part(self, number: int) -> ValuePart | None:
        return self._parts.get(number)

    def find_number(self, key: bytes) -> int | None:
        """Return the number of a part by its digest."""
        for part in self._undigested_parts:
            if part.is_message or len(part.raw) > MAX_INLINE_TREE_BYTES:
                self._number_by_digest[key_of(part)] = part.number
        self._undigested_parts.clear()
        return self._number_by_digest.get(key)

    def find_message_number(self, key: bytes, message: BaseMessage) -> int | None:
        """Return the number of the stored message that equals this one.

        A message without an id is a new one if the equal stored message has got an id since.
        """
        number = self.find_number(key)
        return None if message.id is None and number in self._renumbered_messages else number

    def add_numbers(self, number_by_digest: dict[bytes, int]) -> None:
        self._number_by_digest.update(number_by_digest)

    def find_number_by_object(self, message: BaseMessage) -> int | None:
        """Return the number of the part that has this same object, if it is unchanged."""
        part = self._tracked_part(message)
        if part is not None and matches_snapshot(message, part.template.snapshot):
            return part.number
        return self.message_lists.find_number(message)

    def keep_object(self, part: ValuePart, message: BaseMessage, snapshot: Snapshot) -> None:
        self._forget_object(part.object, part)
        part.keep_object(message, snapshot)
        self._tracked_objects[id(message)] = ref(message), part

    def _track_returned(self, part: ValuePart, message: BaseMessage) -> None:
        """Recognise a message as long as its caller has it.

        LangGraph may give it an id. It is then not another message.
        """
        tracked, key = self._tracked_objects, id(message)
        tracked[key] = ref(message, lambda _: tracked.pop(key, None)), part

    def _tracked_part(self, message: BaseMessage) -> ValuePart | None:
        tracked = self._tracked_objects.get(id(message))
        return tracked[1] if tracked is not None and tracked[0]() is message else None

    def _forget_object(self, message: BaseMessage | None, part: ValuePart) -> None:
        if message is not None and self._tracked_part(message) is part:
            del self._tracked_objects[id(message)]

    # Reading.

    def decode(self, tree: Tree, serde: SerializerProtocol) -> Any:
        """Decode a tree to a new value; erased parts are left out."""
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

    def _list(self, ranges: Iterable[list[int]], serde: SerializerProtocol) -> list[Any]:
        spans = self.ranges(ranges)
        parts = self._parts_of(spans)
        if not all(part.is_message for part in parts):
            return [self._decode_part(part, serde) for part in parts]
        templates = [part.template for part in parts]
        messages = [template.new_message() for template in templates]
        for part, message, template in zip(parts, messages, templates, strict=True):
            if not template.has_id:
                self._track_returned(part, message)
        if len(messages) >= MIN_CACHED_LENGTH:
            numbers = [part.number for part in parts]
            snapshots = [template.snapshot for template in templates]
            self.message_lists.add_returned(MessageList([*map(ref, messages)], numbers, snapshots))
        return messages

    def remember_list(
        self, value: list[Any], numbers: list[int], known: MessageList | None = None
    ) -> None:
        """Cache a list that was put; `known` is its cached prefix."""
        if len(value) < MIN_CACHED_LENGTH:
            return
        size = len(known.numbers) if known is not None else 0
        snapshots = known.snapshots if known is not None else []
        for message, number in zip(value[size:], numbers[size:], strict=True):
            part = self._parts[number]
            if part.object is not message:
                return  # It is not a message, or is another object with equal content.
            snapshots.append(part.template.snapshot)
        refs = known.refs if known is not None else []
        self.message_lists.add_put(
            MessageList([*refs, *map(ref, value[size:])], numbers, snapshots)
        )

    def _decode_part(self, part: ValuePart, serde: SerializerProtocol) -> Any:
        if not part.is_message:
            return self.decode(part.tree, serde)
        message = part.template.new_message()
        if message.id is None:
            self._track_returned(part, message)
        return message

    def _parts_of(self, ranges: list[list[int]]) -> list[ValuePart]:
        """Return the parts of ranges of numbers; erased ones are left out."""
        if sum(stop - start for start, stop in ranges) <= len(self._parts):
            try:  # the most frequent case: a list of parts that are all loaded
                return [self._parts[n] for start, stop in ranges for n in range(start, stop)]
            except KeyError:
                pass
        return list(self.parts(ranges))

    def parts(self, ranges: Iterable[list[int]]) -> Iterator[ValuePart]:
        for start, stop in self.ranges(ranges):
            wanted: Iterable[int] = range(start, stop)
            if stop - start > len(self._parts):
                # A manipulated store must not cause an endless loop.
                wanted = sorted(number for number in self._parts if start <= number < stop)
                if self.erased_numbers is not None and stop - start > len(self._parts) + len(
                    self.erased_numbers
                ):
                    raise PartNotLoaded
            for number in wanted:
                if (part := self._find_part(number)) is not None:
                    yield part

    def _find_part(self, number: int) -> ValuePart | None:
        """Return the part, or None if it was erased."""
        part = self._parts.get(number)
        if part is None and self.erased_numbers is not None and number not in self.erased_numbers:
            raise PartNotLoaded
        return part

    def entries(self, tree: Tree) -> dict[str, Tree]:
        """Return the entries of an encoded dict, not decoded; empty for anything else."""
        try:
            if type(tree) is dict and "$m" in tree:
                tree = self._parts[tree["$m"]].tree
            if type(tree) is not dict:
                return {}
            return dict(tree["$d"]) if "$d" in tree else tree
        except (LookupError, TypeError, ValueError):  # Another program wrote invalid records.
            return {}

    def ranges(self, ranges: Iterable[list[int]]) -> list[list[int]]:
        """Return all ranges of a list, with its referenced beginning resolved."""
        resolved = list(ranges)
        while resolved and len(resolved[0]) == 1:
            first = self._find_part(resolved[0][0])
            resolved[:1] = [] if first is None else first.tree["$l"]
        return resolved
