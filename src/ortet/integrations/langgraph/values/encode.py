"""How values become trees of parts: what is new in them is found, and nothing else is stored."""

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
    MARK,
    copied,
    data_of,
    is_as,
    is_plain,
    snapshot,
)
from ortet.integrations.langgraph.values.heap import INLINE, Heap
from ortet.integrations.langgraph.values.parts import Part, Tree, digest, encode, ranges_of
from ortet.integrations.langgraph.values.rows import Row

_OBJECT = 1 << 15
"""Bytes that are stored apart from the journal."""
_DICT = 1 << 12
_RANGES = 32
_DEEPEST = 30


class Maker:
    """Makes trees of values. What is new in them is its own until `done`, when it is stored."""

    def __init__(self, heap: Heap, serde: SerializerProtocol) -> None:
        self._heap = heap
        self._serde = serde
        self._native = type(serde) is JsonPlusSerializer
        self._next = list(heap.next)
        self._made: dict[bytes, int] = {}
        self._said: dict[int, int] = {}  # by id() of a message
        self._lists: list[tuple[list[Any], list[int], Row | None]] = []
        self.new: list[Part] = []
        self.large: list[tuple[list[Any], bytes]] = []  # a tree's [type, id, size], and its bytes

    def done(self) -> None:
        for part in self.new:
            self._heap.add(part)
        self._heap.learn(self._made)
        for value, numbers, known in self._lists:
            self._heap.remember(value, numbers, known)

    def channel(self, name: str, value: Any, before: Tree) -> Tree:
        """The value of a channel; `before` is its tree in the checkpoint before."""
        try:
            if not self._native:
                return self._once(self._bytes(value))
            if type(value) is _DeltaSnapshot:
                inner = before.get("$s", before) if type(before) is dict else None
                return {"$s": self.channel(name, value.value, inner)}
            if type(value) is list and value:
                return {"$l": self._row(self._elements(value, before), before)}
            if type(value) is dict:
                return self._shared(self._tree(value))
            return self._once(self._tree(value))
        except OrtetError:
            raise
        except Exception as error:
            raise _not_stored(
                f"the value of channel {name!r}", value, error, channel=name
            ) from error

    def tree(self, name: str, value: Any) -> Tree:
        """Of what is no channel's, and whose order says nothing."""
        if _is_simple(value):
            return copied(value)  # its giver may go on with it
        try:
            return self._tree(value) if self._native else self._bytes(value)
        except OrtetError:
            raise
        except Exception as error:
            raise _not_stored(f"{name!r} of a checkpoint", value, error, key=name) from error

    def _shared(self, tree: Tree) -> Tree:
        """A dict, each of whose values is stored once."""
        (first, *others) = tree or [""]
        if first == "$d":
            kept: Tree = {first: [[key, self._once(one)] for key, one in tree[first]]}
        elif first.startswith("$") and not others:
            return self._once(tree)
        else:
            kept = {key: self._once(one) for key, one in tree.items()}
        return self._once(kept) if len(encode(kept)) > _DICT else kept

    def _elements(self, value: list[Any], before: Tree) -> list[int]:
        """The number of each; one that is as it was at its place keeps it."""
        value, old = list(value), None  # which its giver may go on with
        known = self._heap.rows.begun(value)
        found = list(known.numbers) if known is not None else []
        for at, one in enumerate(islice(value, len(found), None), len(found)):
            if isinstance(one, BaseMessage) and (number := self._message(one)) is not None:
                found.append(number)
                continue
            if old is None:  # most lists are all messages, which are known by themselves
                was = before.get("$l", ()) if type(before) is dict else ()
                old = list(self._heap.parts(was))
            part = old[at] if at < len(old) else None
            tree = self._tree(one)
            raw = encode(tree)
            if part is not None and not part.is_message and part.raw == raw:
                found.append(part.number)
            elif len(raw) > INLINE:
                found.append(self._numbered(tree, raw))
            else:
                found.append(self._add(tree))
        if old is None:
            self._lists.append((value, found, known))
        return found

    def _row(self, numbers: list[int], before: Tree) -> list[list[int]]:
        """Numbers as few ranges: what goes on from a list that is known refers to it."""
        found = ranges_of(numbers)
        if len(found) <= _RANGES:
            return found
        known = before["$l"] if type(before) is dict and "$l" in before else []
        whole = self._heap.ranges(known)
        size = sum(stop - start for start, stop in whole)
        if known and [n for start, stop in whole for n in range(start, stop)] == numbers[:size]:
            added = ranges_of(numbers[size:]) if size < len(numbers) else []
            found = [*known, *added]
        if len(found) > _RANGES:
            found = [[self._add({"$l": found})]]
        return found

    def _message(self, message: BaseMessage) -> int | None:
        part = self._heap.holding(message)
        if part is not None:
            return part.number
        if id(message) in self._said:
            return self._said[id(message)]
        then = snapshot(message)  # before: LangGraph may give it an id at this moment
        data = data_of(message)
        if data is None:
            return None
        if not is_as(message, then):
            return self._message(message)
        key = digest(encode(data))
        number = self._heap.same(key, message)
        if number is None:
            number = self._made.get(key)
        elif (part := self._heap.part(number)) is not None:
            self._heap.hold(part, message, then)
        if number is None:
            number = self._made[key] = self._next[0]
            before = self._heap.unnamed(message, data)
            data["extra"][MARK]["n"] = number
            stored = {"$i": [before.number, message.id]} if before is not None else None
            part = Part(number, data, is_message=True, stored=stored)
            part.keep(message, then)
            self.new.append(part)
            self._next[0] += 1
        self._said[id(message)] = number
        return number

    def _tree(self, value: Any, depth: int = 0) -> Tree:
        kind = type(value)
        if kind is list and depth < _DEEPEST:
            return [self._below(one, depth + 1) for one in value]
        if kind is dict and depth < _DEEPEST and all(type(key) is str for key in value):
            made = {key: self._below(one, depth + 1) for key, one in value.items()}
            if is_plain(list(value)):
                odd = list(made) != sorted(made) or any(key.startswith("$") for key in made)
                return {"$d": [[key, one] for key, one in made.items()]} if odd else made
        if isinstance(value, BaseMessage) and (number := self._message(value)) is not None:
            return {"$m": number}
        if kind in (list, dict) or not is_plain(value):
            return self._bytes(value)
        if kind is str and len(value) > _OBJECT:
            return self._bytes(value)
        return value

    def _below(self, value: Any, depth: int) -> Tree:
        """A dict inside of something else may be found there again."""
        tree = self._tree(value, depth)
        return self._once(tree) if type(value) is dict else tree

    def _bytes(self, value: Any) -> Tree:
        """Through LangGraph's serializer."""
        kind, data = self._serde.dumps_typed(value)
        data = bytes(data)
        if len(data) <= _OBJECT:
            return {"$b": [kind, b64encode(data).decode()]}
        key = digest(kind.encode() + b"\0" + data)
        number = self._heap.known(key)
        number = self._made.get(key) if number is None else number
        if number is None:
            described = [kind, "", len(data)]
            self.large.append((described, data))
            number = self._made[key] = self._add({"$o": described})
        return {"$m": number}

    def _once(self, tree: Tree) -> Tree:
        """The tree, or the number of the part that it is where that is shorter."""
        if tree is None or type(tree) in (bool, int, float):
            return tree
        raw = encode(tree)
        return tree if len(raw) <= INLINE else {"$m": self._numbered(tree, raw)}

    def _numbered(self, tree: Tree, raw: bytes) -> int:
        key = digest(raw)
        number = self._heap.known(key)
        number = self._made.get(key) if number is None else number
        if number is None:
            number = self._made[key] = self._add(tree)
        return number

    def _add(self, tree: Tree) -> int:
        self.new.append(Part(self._next[1], tree))
        self._next[1] += 1
        return self._next[1] - 1


def _not_stored(what: str, value: Any, error: Exception, **details: str) -> Invalid:
    return Invalid(
        "not_serialisable",
        f"{what} cannot be stored ({type(error).__name__}: {error}): keep data in the state, not "
        f"open things, or give OrtetSaver a serde that knows {type(value).__name__}",
        **details,
    )


def _is_simple(value: Any) -> bool:
    """Whether it is its own tree."""
    if type(value) is dict:
        for key, one in value.items():
            if type(key) is not str or key.startswith("$") or not _is_simple(one):
                return False
        return is_plain(list(value))
    if type(value) is list:
        return all(_is_simple(one) for one in value)
    return is_plain(value)
