"""Items of a LangGraph store: their journal events and catalog rows.

The journal of a session records every change. A catalog row for each existing item points to its
last event.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import Hasher, StoredRecord, decode, encode
from ortet.backends.base import RowChange
from ortet.errors import Invalid
from ortet.ids import to_hex
from ortet.journal.events import MAX_BODY_BYTES, Draft, Event, check_plain

# Caches values of items in memory, up to a size limit.

Values = dict[int, dict[str, Any]]
"""Values by the number of the event that has them."""

_MAX_CACHE_BYTES = 32 << 20
"""Estimated number of bytes to cache."""
_BYTES_PER_FIELD = 200
"""Estimated overhead of a field."""


class ItemValueCache:
    """Recently written or read values of one timeline.

    The value of an event never changes. The cache is emptied when the epoch changes, because values
    may have been erased.
    """

    def __init__(self) -> None:
        self._values: Values = {}
        self._key: tuple[str, tuple[int, int]] | None = None
        self._used = 0

    def values_for(self, timeline: str, epoch: tuple[int, int]) -> Values:
        if self._key != (timeline, epoch):
            self._key, self._values, self._used = (timeline, epoch), {}, 0
        return self._values

    def keep(self, values: Values, seq: int, value: dict[str, Any]) -> None:
        """Add a value to the dict that `values_for` returned.

        If the epoch changed since then, that dict is no longer used and the value is not found.
        """
        self._used += size_of(value)
        if self._used > _MAX_CACHE_BYTES:
            values.clear()
            self._used = 0
        values[seq] = value


def size_of(value: Any) -> int:
    """Estimate the memory that a value takes, including its word counts."""
    if isinstance(value, str):
        return _BYTES_PER_FIELD + 4 * len(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    return _BYTES_PER_FIELD + sum(map(size_of, inner))


def copy_value(value: Any) -> Any:
    """Return a copy that the caller may change."""
    return msgspec.to_builtins(value)


ITEM, PART, VECTORS, EXPIRED = (
    "langgraph.item",
    "langgraph.part",
    "langgraph.vectors",
    "langgraph.expired",
)
"""Event kinds.

They are: item put or deleted; part of a long value; vectors of a value; expired items removed.
"""

ItemId = tuple[tuple[str, ...], str]
"""Namespace and key."""

_END = ".."
"""Separates namespace and key in a row key: labels are not empty and have no period."""
_HASHED = "\x02"
_MAX_NAME_LENGTH = 2000
_MAX_DEPTH = 64


class ItemEntry(StoredRecord, frozen=True):
    """Location of an item. Times are in nanoseconds since 1970; `ttl` is in minutes, 0 for none."""

    seq: int  # event of the last put
    born: int  # event of the first put since the item was last created
    created: int
    updated: int
    said: int  # event that has the value; earlier than `seq` if the same value was put again
    parts: int = 0  # events after `said` that hold the value, if it was too long for one
    vectors: int = 0  # events with vectors, after `seq` and its parts
    ttl: float = 0.0
    expires: int = 0
    key: str = ""  # the key, if the row key has only its hash

    def is_expired(self, now: int) -> bool:
        return 0 < self.expires <= now

    def with_new_expiry(self, now: int) -> ItemEntry:
        return replace(self, expires=now + int(self.ttl * 60e9))

    @property
    def vectors_after(self) -> int:
        """The event after which the events with the vectors come."""
        return self.seq + (self.parts if self.said == self.seq else 0)


def changes_of(
    event: Event, find_entry: Callable[[ItemId], ItemEntry | None]
) -> Iterator[tuple[ItemId, ItemEntry | None]]:
    """Yield the items that an event changes, with their new entries; None for a removed item.

    All data outside the journal is derived by this function.
    """
    data = event.data
    if event.kind == EXPIRED and not event.erased:
        for namespace, key in data["gone"]:
            yield (tuple(namespace), key), None
    if event.kind != ITEM or event.erased:
        return
    id_ = (tuple(data["namespace"]), data["key"])
    if data.get("gone"):
        yield id_, None
        return
    before = find_entry(id_) if "since" in data else None
    same = "same" in data and before is not None
    yield (
        id_,
        ItemEntry(
            seq=event.seq,
            born=data.get("since", event.seq),
            created=before.created if before else event.time,
            updated=event.time,
            said=before.said if before and same else event.seq,
            parts=before.parts if before and same else data.get("parts", 0),
            vectors=data.get("vectors", 0),
            ttl=data.get("ttl", 0.0),
            expires=data.get("expires", 0),
            key=data["key"] if _needs_hash(data["key"]) else "",
        ),
    )


def fold_items(events: Iterable[Event]) -> dict[ItemId, ItemEntry]:
    """Return all items that exist after these events."""
    entries: dict[ItemId, ItemEntry] = {}
    for event in events:
        for id_, entry in changes_of(event, entries.get):
            if entry is None:
                entries.pop(id_, None)
            else:
                entries[id_] = entry
    return entries


def item_history(events: Iterable[Event], id_: ItemId) -> list[tuple[Event, ItemEntry | None]]:
    """Return the events that changed an item, each with the entry after it."""
    versions: list[tuple[Event, ItemEntry | None]] = []
    for event in events:
        last = versions[-1][1] if versions else None
        for changed, entry in changes_of(event, lambda _, last=last: last):  # type: ignore[misc]
            if changed == id_:
                versions.append((event, entry))
    return versions


def event_seqs(event: Event) -> range:
    """Return the numbers of the events that belong to one put."""
    data = event.data if event.kind == ITEM else {}
    more = data.get("parts", 0) + data.get("vectors", 0)
    return range(event.seq, event.seq + 1 + more) if event.kind == ITEM else range(0)


# Catalog rows.


def kind_of(timeline: str) -> str:
    return f"langgraph-item/{timeline}"


def row_of(timeline: str, id_: ItemId, entry: ItemEntry | None) -> RowChange:
    value = None if entry is None else encode(entry)
    return RowChange(kind_of(timeline), row_key(id_), value)


def row_key(id_: ItemId) -> str:
    namespace, key = id_
    if _needs_hash(key):
        key = _HASHED + to_hex(Hasher().oid(key.encode()))
    return f"{'.'.join(namespace)}{_END}{key}"


def id_of(name: str, entry: ItemEntry) -> ItemId:
    labels, _, key = name.partition(_END)
    return (tuple(labels.split(".")) if labels else (), entry.key or key)


def entry_of(value: bytes) -> ItemEntry:
    return decode(ItemEntry, value)


def _needs_hash(key: str) -> bool:
    """Return True if the key cannot be part of a row key."""
    return len(key) > _MAX_NAME_LENGTH or "\0" in key or key.startswith(_HASHED)


# Argument checks.


def checked_id(namespace: Iterable[str], key: Any) -> ItemId:
    """Return the item id; raise Invalid if it cannot be part of a row key."""
    labels = tuple(namespace)
    name = str(key)
    for text in (*labels, name):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Invalid(
                    "bad_name", f"{text!r} is no text ({error.reason}): take another key or label"
                ) from error
    if sum(map(len, labels)) + len(labels) > _MAX_NAME_LENGTH:
        raise Invalid(
            "bad_name", f"namespace {labels!r:.100} is too long: {_MAX_NAME_LENGTH} letters fit"
        )
    return labels, name


def checked_value(id_: ItemId, value: Any) -> dict[str, Any]:
    """Return a plain copy of the value.

    Raise Invalid("not_json") with the field that is not plain.
    """
    fields = dict(value)
    try:
        check_plain(fields)
        return decode(dict[str, Any], encode(fields))
    except Invalid as error:
        where, why = _find_invalid_field(fields)
        raise Invalid(
            "not_json",
            f"item {id_[1]!r} in {'.'.join(id_[0])}: {where or 'its value'} cannot be stored "
            f"({why or error.message}): give str, int, float, bool, None, list or dict",
            key=id_[1],
            namespace=list(id_[0]),
            field=where,
        ) from error


def _find_invalid_field(value: Any, path: str = "", depth: int = 0) -> tuple[str, str]:
    """Return the first field that cannot be stored and the reason.

    Empty if it is nested too deep.
    """
    if depth > _MAX_DEPTH:
        return "", ""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"{path or 'value'}[{key!r}]", f"a key that is {type(key).__name__}"
        inner = ((f"{path}.{key}" if path else key, item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    else:
        try:
            check_plain(value)
            encode(value)
        except Invalid:
            return path, f"{type(value).__name__} {value!r:.80}"
        return "", ""
    places = (_find_invalid_field(item, name, depth + 1) for name, item in inner)
    return next((one for one in places if one[0]), ("", ""))


# Builds the events that a put or delete of items writes.

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
        draft = _put(change, change.value, before, old, now=now)
        drafts += (Draft(kind, data, author) for kind, data in draft)
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
