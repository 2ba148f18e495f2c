"""Encodes values as trees of parts, so that only new parts are stored."""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from ortet.errors import Invalid, OrtetError
from ortet.integrations.langgraph.messages import (
    EXTRA_KEY,
    copy_value,
    data_of,
    is_plain,
    matches_snapshot,
    snapshot,
)
from ortet.integrations.langgraph.values.message_lists import MessageList
from ortet.integrations.langgraph.values.parts import (
    MAX_INLINE_TREE_BYTES,
    PartStore,
    Tree,
    ValuePart,
    digest,
    encode,
    ranges_of,
)

_MAX_INLINE_BYTES = 1 << 15
"""Size in bytes above which serialized data is stored as an object outside the journal."""
_MAX_DICT_BYTES = 1 << 12
_MAX_RANGES = 32
_MAX_DEPTH = 30


class ValueEncoder:
    """Converts values to trees. New parts are private to the encoder until `finish`."""

    def __init__(self, part_store: PartStore, serde: SerializerProtocol) -> None:
        self._part_store = part_store
        self._serde = serde
        self._is_default_serde = type(serde) is JsonPlusSerializer
        self._next = list(part_store.next_numbers)
        self._number_by_digest: dict[bytes, int] = {}
        self._number_by_object_id: dict[int, int] = {}  # by id() of a message
        self._new_lists: list[tuple[list[Any], list[int], MessageList | None]] = []
        self.new_parts: list[ValuePart] = []
        self.large_values: list[
            tuple[list[Any], bytes]
        ] = []  # a tree's [type, id, size], and its bytes

    def finish(self) -> None:
        for part in self.new_parts:
            self._part_store.add(part)
        self._part_store.add_numbers(self._number_by_digest)
        for value, numbers, known in self._new_lists:
            self._part_store.remember_list(value, numbers, known)

    def channel(self, name: str, value: Any, previous: Tree) -> Tree:
        """Encode a channel value; `previous` is its tree in the checkpoint before."""
        try:
            if not self._is_default_serde:
                return self._deduplicate(self._serialize(value))
            if type(value) is _DeltaSnapshot:
                inner = previous.get("$s", previous) if type(previous) is dict else None
                return {"$s": self.channel(name, value.value, inner)}
            if type(value) is list and value:
                return {"$l": self._list_ranges(self._list_numbers(value, previous), previous)}
            if type(value) is dict:
                return self._deduplicate_dict(self._tree(value))
            return self._deduplicate(self._tree(value))
        except OrtetError:
            raise
        except Exception as error:
            raise _not_serialisable_error(
                f"the value of channel {name!r}", value, error, channel=name
            ) from error

    def tree(self, name: str, value: Any) -> Tree:
        """Encode a value that is not a channel's and whose key order does not matter."""
        if _is_plain_tree(value):
            return copy_value(value)  # The caller may change it later.
        try:
            return self._tree(value) if self._is_default_serde else self._serialize(value)
        except OrtetError:
            raise
        except Exception as error:
            raise _not_serialisable_error(
                f"{name!r} of a checkpoint", value, error, key=name
            ) from error

    def _deduplicate_dict(self, tree: Tree) -> Tree:
        """Encode a dict so that each of its values is stored once."""
        (first, *others) = tree or [""]
        if first == "$d":
            encoded: Tree = {first: [[key, self._deduplicate(one)] for key, one in tree[first]]}
        elif first.startswith("$") and not others:
            return self._deduplicate(tree)
        else:
            encoded = {key: self._deduplicate(one) for key, one in tree.items()}
        return self._deduplicate(encoded) if len(encode(encoded)) > _MAX_DICT_BYTES else encoded

    def _list_numbers(self, value: list[Any], previous: Tree) -> list[int]:
        """Return the part number of each element; an unchanged element keeps its number."""
        value, old = list(value), None  # The caller may change the list later.
        known = self._part_store.message_lists.longest_prefix(value)
        numbers = list(known.numbers) if known is not None else []
        for at, one in enumerate(islice(value, len(numbers), None), len(numbers)):
            if isinstance(one, BaseMessage) and (number := self._message(one)) is not None:
                numbers.append(number)
                continue
            if old is None:  # Most lists have only messages, which do not need `old`.
                was = previous.get("$l", ()) if type(previous) is dict else ()
                old = list(self._part_store.parts(was))
            part = old[at] if at < len(old) else None
            tree = self._tree(one)
            raw = encode(tree)
            if part is not None and not part.is_message and part.raw == raw:
                numbers.append(part.number)
            elif len(raw) > MAX_INLINE_TREE_BYTES:
                numbers.append(self._part_number(tree, raw))
            else:
                numbers.append(self._add(tree))
        if old is None:
            self._new_lists.append((value, numbers, known))
        return numbers

    def _list_ranges(self, numbers: list[int], previous: Tree) -> list[list[int]]:
        """Return the numbers as few ranges. A list that extends a known list refers to it."""
        ranges = ranges_of(numbers)
        if len(ranges) <= _MAX_RANGES:
            return ranges
        known = previous["$l"] if type(previous) is dict and "$l" in previous else []
        whole = self._part_store.ranges(known)
        size = sum(stop - start for start, stop in whole)
        if known and [n for start, stop in whole for n in range(start, stop)] == numbers[:size]:
            added = ranges_of(numbers[size:]) if size < len(numbers) else []
            ranges = [*known, *added]
        if len(ranges) > _MAX_RANGES:
            ranges = [[self._add({"$l": ranges})]]
        return ranges

    def _message(self, message: BaseMessage) -> int | None:
        known_number = self._part_store.find_number_by_object(message)
        if known_number is not None:
            return known_number
        if id(message) in self._number_by_object_id:
            return self._number_by_object_id[id(message)]
        # Take it before `data_of`: LangGraph may set the message id at this moment.
        then = snapshot(message)
        data = data_of(message)
        if data is None:
            return None
        if not matches_snapshot(message, then):
            return self._message(message)
        key = digest(encode(data))
        number = self._part_store.find_message_number(key, message)
        if number is None:
            number = self._number_by_digest.get(key)
        elif (part := self._part_store.part(number)) is not None:
            self._part_store.keep_object(part, message, then)
        if number is None:
            number = self._number_by_digest[key] = self._next[0]
            before = self._part_store.find_without_id(message, data)
            data["extra"][EXTRA_KEY]["n"] = number
            stored = {"$i": [before.number, message.id]} if before is not None else None
            part = ValuePart(number, data, is_message=True, stored=stored)
            part.keep_object(message, then)
            self.new_parts.append(part)
            self._next[0] += 1
        self._number_by_object_id[id(message)] = number
        return number

    def _tree(self, value: Any, depth: int = 0) -> Tree:
        kind = type(value)
        if kind is list and depth < _MAX_DEPTH:
            return [self._nested_tree(one, depth + 1) for one in value]
        if kind is dict and depth < _MAX_DEPTH and all(type(key) is str for key in value):
            entries = {key: self._nested_tree(one, depth + 1) for key, one in value.items()}
            if is_plain(list(value)):
                odd = list(entries) != sorted(entries) or any(
                    key.startswith("$") for key in entries
                )
                return {"$d": [[key, one] for key, one in entries.items()]} if odd else entries
        if isinstance(value, BaseMessage) and (number := self._message(value)) is not None:
            return {"$m": number}
        if kind in (list, dict) or not is_plain(value):
            return self._serialize(value)
        if kind is str and len(value) > _MAX_INLINE_BYTES:
            return self._serialize(value)
        return value

    def _nested_tree(self, value: Any, depth: int) -> Tree:
        """Encode a nested value; a dict is deduplicated, because it often occurs again."""
        tree = self._tree(value, depth)
        return self._deduplicate(tree) if type(value) is dict else tree

    def _serialize(self, value: Any) -> Tree:
        """Encode a value with LangGraph's serializer."""
        kind, data = self._serde.dumps_typed(value)
        data = bytes(data)
        if len(data) <= _MAX_INLINE_BYTES:
            return {"$b": [kind, b64encode(data).decode()]}
        key = digest(kind.encode() + b"\0" + data)
        number = self._part_store.find_number(key)
        number = self._number_by_digest.get(key) if number is None else number
        if number is None:
            described = [kind, "", len(data)]
            self.large_values.append((described, data))
            number = self._number_by_digest[key] = self._add({"$o": described})
        return {"$m": number}

    def _deduplicate(self, tree: Tree) -> Tree:
        """Return the tree, or a reference to its part if that is shorter."""
        if tree is None or type(tree) in (bool, int, float):
            return tree
        raw = encode(tree)
        return tree if len(raw) <= MAX_INLINE_TREE_BYTES else {"$m": self._part_number(tree, raw)}

    def _part_number(self, tree: Tree, raw: bytes) -> int:
        key = digest(raw)
        number = self._part_store.find_number(key)
        number = self._number_by_digest.get(key) if number is None else number
        if number is None:
            number = self._number_by_digest[key] = self._add(tree)
        return number

    def _add(self, tree: Tree) -> int:
        self.new_parts.append(ValuePart(self._next[1], tree))
        self._next[1] += 1
        return self._next[1] - 1


def _not_serialisable_error(subject: str, value: Any, error: Exception, **details: str) -> Invalid:
    return Invalid(
        "not_serialisable",
        f"{subject} cannot be stored ({type(error).__name__}: {error}): keep data in the state, "
        "not "
        f"open things, or give OrtetSaver a serde that knows {type(value).__name__}",
        **details,
    )


def _is_plain_tree(value: Any) -> bool:
    """Return True if the value is its own encoding."""
    if type(value) is dict:
        for key, one in value.items():
            if type(key) is not str or key.startswith("$") or not _is_plain_tree(one):
                return False
        return is_plain(list(value))
    if type(value) is list:
        return all(_is_plain_tree(one) for one in value)
    return is_plain(value)
