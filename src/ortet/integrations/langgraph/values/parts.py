"""One part of a checkpoint: its stored form and, for a message, its object."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from ortet._util.codec import Hasher
from ortet.errors import Refused
from ortet.integrations.langgraph.messages import (
    EXTRA_KEY,
    Snapshot,
    matches_snapshot,
    message_of,
    snapshot,
)

Tree = Any

encode = msgspec.msgpack.Encoder(order="deterministic").encode
digest = Hasher().oid


class PartNotLoaded(Exception):
    """Raised if a part was not loaded: the whole journal has to be read."""


class ValuePart:
    """A part of a value.

    `tree` is the message data if the part is a message. Its `object` is returned as long as nobody
    has changed it.
    """

    __slots__ = (
        "_raw",
        "is_message",
        "number",
        "object",
        "object_snapshot",
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
        self.object_snapshot: Snapshot | None = None
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode(self.tree)
        return self._raw

    def keep_object(self, message: BaseMessage, object_snapshot: Snapshot | None = None) -> None:
        self.object, self.object_snapshot = message, object_snapshot or snapshot(message)

    def adopt_object(self, other: ValuePart) -> None:
        self.object, self.object_snapshot = other.object, other.object_snapshot

    def is_unchanged(self, message: BaseMessage) -> bool:
        """Return True if the part keeps this same object and nobody has changed it."""
        then = self.object_snapshot
        return self.object is message and then is not None and matches_snapshot(message, then)

    def message(self) -> BaseMessage:
        if self.object is None or not self.is_unchanged(self.object):
            self.keep_object(message_of(self.tree))
        assert self.object is not None
        return self.object


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
    found = [[numbers[0], numbers[0] + 1]]
    for before, number in pairwise(numbers):
        if number == before + 1:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
