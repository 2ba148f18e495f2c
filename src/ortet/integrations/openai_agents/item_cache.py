"""Caches the items of a session while it is open here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from ortet._util.codec import array_header
from ortet._util.structs import thread_safe_struct
from ortet.integrations._shared.messages import load_full_message
from ortet.integrations.openai_agents.items import Item, items_of, result_of
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.conversation.tool_calls import results_of, without_obsolete_results
from ortet.journal.events import Event
from ortet.journal.state.records import Message, message_of
from ortet.sessions.conversation_state import last_compaction, system_messages
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

_FIRST_PAGE = 8
_UNANSWERED_CALL_WINDOW = 64
"""Number of last items that are searched for calls without results."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(thread_safe_struct(list[Item])).decode


class _MessageSpan(NamedTuple):
    """A message, the end of its items in the list, and the call whose result it synthesizes."""

    seq: int
    end: int
    synthetic_call_id: str
    time: int


class StoredItem(NamedTuple):
    """An item with the event and the time of its message."""

    seq: int
    time: int
    item: Item


class ItemCache:
    """Items of one session, encoded, so that each caller gets copies it may change."""

    def __init__(self) -> None:
        self._key: tuple[str, int, int] = ("", -1, 0)
        self._seq = 0
        self._message_spans: list[_MessageSpan] = []
        self._items: list[bytes] = []
        self._leading_items: list[bytes] = []

    def items(
        self, view: SessionReader, limit: int | None, open_calls: Collection[str]
    ) -> list[Item]:
        """Return all items, or the latest ones.

        Calls without a result get a synthetic one, except those in `open_calls`.
        """
        if limit is not None and limit > 0 and not open_calls and self._key[1] < 0:
            latest = [load_full_message(view, message) for message in view.messages(last=limit)]
            if len(latest) == limit:
                few = ItemCache()
                few._append_messages(latest)
                return _decode_items(few._visible_items(view, open_calls)[-limit:])
        self._catch_up(view)
        shown = [*self._leading_items, *self._visible_items(view, open_calls)]
        if limit is not None and limit >= 0:
            shown = shown[-limit:] if limit else []
        return _decode_items(shown)

    def stored_items(self, view: SessionReader) -> list[StoredItem]:
        """Return all items except synthetic results."""
        self._catch_up(view)
        items, start, stored = _decode_items(self._items), 0, list[StoredItem]()
        for one in self._message_spans:
            if not one.synthetic_call_id:
                stored += [StoredItem(one.seq, one.time, item) for item in items[start : one.end]]
            start = one.end
        return stored

    def _catch_up(self, view: SessionReader) -> None:
        core = view.internals.state.core
        key = (view.internals.event_log.timeline, core.since, core.summary)
        if key != self._key or core.events < self._seq:
            self._read(view, key)
            return
        if core.events > self._seq:
            new = [
                load_full_message(view, one)
                for one in _to_messages(view.events(self._seq, core.events))
            ]
            lost = {one.synthetic_call_id for one in self._message_spans if one.synthetic_call_id}
            if lost and any(lost.intersection(results_of(one)) for one in new):
                self._read(view, key)  # The real result arrived later.
                return
            self._append_messages(new)
            self._seq = core.events

    def _read(self, view: SessionReader, key: tuple[str, int, int]) -> None:
        self._key, self._seq = key, view.internals.state.core.events
        self._message_spans, self._items = [], []
        past = last_compaction(view.internals.context)
        first = [] if past is None else system_messages(view.internals.context)
        if past is not None and past.summary:
            first.append(summary_message(past))
        self._leading_items = [_encode(item) for _, items in items_of(first) for item in items]
        events = view.events(key[1], self._seq)
        self._append_messages(
            [
                load_full_message(view, message)
                for message in without_obsolete_results(list(_to_messages(events)))
            ]
        )

    def _append_messages(self, messages: Iterable[Message]) -> None:
        for message, items in items_of(messages):
            self._items += map(_encode, items)
            ids = results_of(message) if message.extra.get("synthetic") else []
            self._message_spans.append(
                _MessageSpan(message.seq, len(self._items), ids[0] if ids else "", message.time)
            )

    def _visible_items(self, view: SessionReader, open_calls: Collection[str]) -> list[bytes]:
        """Return the items without synthetic results of `open_calls`.

        Their caller may still add the real results.
        """
        message_spans, end = self._message_spans, len(self._items)
        for at in range(len(message_spans) - 1, -1, -1):
            if (
                message_spans[at].synthetic_call_id not in open_calls
                or not message_spans[at].synthetic_call_id
            ):
                break
            end = message_spans[at - 1].end if at else 0
        shown = self._items[:end] if end < len(self._items) else self._items
        waiting = [call for call in view.internals.state.core.calling if call.id not in open_calls]
        if not waiting:
            return shown
        tail = _decode_items(shown[-_UNANSWERED_CALL_WINDOW:])
        return [*shown, *(_encode(one) for call in waiting for one in result_of(call, tail))]


_CACHES: WeakKeyDictionary[Session, ItemCache] = WeakKeyDictionary()


def item_cache_for(view: SessionReader) -> ItemCache:
    """Return the item cache of a session.

    An open session keeps its cache. Other readers get an empty one each time, because events may
    have been erased in between.
    """
    return _CACHES.setdefault(view, ItemCache()) if isinstance(view, Session) else ItemCache()


def messages_with_items(
    view: SessionReader, last: int | None = None
) -> list[tuple[Message, list[Item]]]:
    """Return all or the `last` messages with their items, without synthetic results."""
    several = view.messages() if last is None else view.messages(last=last)
    pairs = items_of(load_full_message(view, message) for message in several)
    return [(message, items) for message, items in pairs if not message.extra.get("synthetic")]


def newest_messages(view: SessionReader) -> Iterator[tuple[Message, list[Item]]]:
    """Yield messages with their items, newest first; older ones are read on demand."""
    count, seen = _FIRST_PAGE, view.internals.state.core.events + 1
    while True:
        pairs = messages_with_items(view, count)
        yield from (pair for pair in reversed(pairs) if pair[0].seq < seen)
        if len(view.messages(last=count)) < count:
            return
        seen = min((message.seq for message, _ in pairs), default=seen)
        count *= 4


def _to_messages(events: Iterable[Event]) -> Iterable[Message]:
    return (message_of(one) for one in events if one.kind == "message" and not one.erased)


def _decode_items(items: list[bytes]) -> list[Item]:
    return _decode(array_header(len(items)) + b"".join(items))
