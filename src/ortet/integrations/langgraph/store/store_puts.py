"""Builds the events that a put or delete of items writes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ortet._util.codec import encode
from ortet.errors import Invalid
from ortet.integrations.langgraph.store.items import ITEM, PART, VECTORS, ItemEntry, ItemId
from ortet.journal.events import MAX_BODY_BYTES, Draft

_MAX_VALUE_BYTES = MAX_BODY_BYTES // 2
"""Largest value, in bytes, that one event holds."""
_PIECE_CHARS = 200_000
"""Characters in each part of a longer value."""


class ItemChange(msgspec.Struct, frozen=True):
    """An item to put, or to delete if `value` is None.

    `ttl` is in minutes, 0 for none. `vectors` are 32-bit floats as bytes, each with the path of its
    text.
    """

    id: ItemId
    value: dict[str, Any] | None
    ttl: float = 0.0
    vectors: Sequence[tuple[str, bytes]] = ()


def drafts_of(
    changes: Sequence[ItemChange],
    find_entry: Callable[[ItemId], ItemEntry | None],
    read_value: Callable[[ItemEntry], dict[str, Any] | None],
    *,
    now: int,
    author: str,
) -> list[Draft]:
    """Return the events for these changes.

    `find_entry` returns the present entry of an item; `read_value` returns the value of an entry.
    """
    drafts: list[Draft] = []
    for change in changes:
        before = find_entry(change.id)
        if change.value is None:
            if before is not None:
                drafts.append(Draft(ITEM, {**_id_fields(change.id), "gone": True}, author))
            continue
        if before is not None and before.is_expired(now):
            before = None
        old = None if before is None else read_value(before)
        told = _put(change, change.value, before, old, now=now)
        drafts += (Draft(kind, data, author) for kind, data in told)
    return drafts


def _put(
    change: ItemChange,
    value: dict[str, Any],
    before: ItemEntry | None,
    old: dict[str, Any] | None,
    *,
    now: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    data: dict[str, Any] = _id_fields(change.id)
    pieces: list[str] = []
    body = encode(value)
    if before is not None:
        data["since"] = before.born
    if before is not None and old is not None and encode(old) == body:
        # Compare encoded values: in Python True == 1.
        data["same"] = before.said
    elif len(body) <= _MAX_VALUE_BYTES:
        data["value"] = value
    else:
        text = msgspec.json.encode(value).decode()
        pieces = [text[n : n + _PIECE_CHARS] for n in range(0, len(text), _PIECE_CHARS)]
        data["parts"] = len(pieces)
    if change.ttl:
        data["ttl"], data["expires"] = change.ttl, now + int(change.ttl * 60e9)
    groups = list(_grouped(change.vectors))
    if groups:
        data["vectors"] = len(groups)
    yield ITEM, data
    yield from ((PART, {"text": text}) for text in pieces)
    yield from ((VECTORS, {"vectors": group}) for group in groups)


def _id_fields(id_: ItemId) -> dict[str, Any]:
    return {"namespace": list(id_[0]), "key": id_[1]}


def _grouped(vectors: Sequence[tuple[str, bytes]]) -> Iterator[list[list[str]]]:
    """Group vectors so that each group fits into one event."""
    group: list[list[str]] = []
    size = 0
    for path, raw in vectors:
        text = b64encode(raw).decode()
        if len(text) > _MAX_VALUE_BYTES:
            raise Invalid("payload_too_large", f"a vector of {len(raw)} bytes cannot be stored")
        if group and size + len(text) + len(path) > _MAX_VALUE_BYTES:
            yield group
            group, size = [], 0
        group.append([path, text])
        size += len(text) + len(path)
    if group:
        yield group
