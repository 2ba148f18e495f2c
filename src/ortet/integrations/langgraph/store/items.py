"""Items of a LangGraph store: their journal events and catalog rows.

The journal of a session records every change. A catalog row for each existing item points to its
last event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from ortet._util.codec import Hasher, StoredRecord, decode, encode
from ortet.backends.base import RowChange
from ortet.errors import Invalid
from ortet.ids import to_hex
from ortet.journal.events import Event, check_plain

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
    found: dict[ItemId, ItemEntry] = {}
    for event in events:
        for id_, entry in changes_of(event, found.get):
            if entry is None:
                found.pop(id_, None)
            else:
                found[id_] = entry
    return found


def item_history(events: Iterable[Event], id_: ItemId) -> list[tuple[Event, ItemEntry | None]]:
    """Return the events that changed an item, each with the entry after it."""
    found: list[tuple[Event, ItemEntry | None]] = []
    for event in events:
        last = found[-1][1] if found else None
        for changed, entry in changes_of(event, lambda _, last=last: last):  # type: ignore[misc]
            if changed == id_:
                found.append((event, entry))
    return found


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
    given = dict(value)
    try:
        check_plain(given)
        return decode(dict[str, Any], encode(given))
    except Invalid as error:
        where, why = _find_invalid_field(given)
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
    found = (_find_invalid_field(item, name, depth + 1) for name, item in inner)
    return next((one for one in found if one[0]), ("", ""))
