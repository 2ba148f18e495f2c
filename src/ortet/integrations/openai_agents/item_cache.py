"""What a session said, as items, kept ready while it is open here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from ortet._util.codec import array_head
from ortet._util.structs import known
from ortet.integrations._shared.messages import whole_of
from ortet.integrations.openai_agents.items import Item, items_of, result_of
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.conversation.tool_calls import results_of, settled
from ortet.journal.events import Event
from ortet.journal.state.records import Message
from ortet.journal.state.reducers import message_of
from ortet.sessions.reader import View
from ortet.sessions.recollect import last_compaction, rules_of
from ortet.sessions.session import Session

_FEW = 8
_TAIL = 64
"""Items among which calls without results are looked for."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(known(list[Item])).decode


class _Said(NamedTuple):
    """A message: where it ends in the list of items, and the call that it makes up a result of."""

    seq: int
    end: int
    lost: str
    time: int


class Placed(NamedTuple):
    """An item, the event of its message, and when that was."""

    seq: int
    time: int
    item: Item


class Shelf:
    """Items as bytes: who asks gets items of its own, which it may change."""

    def __init__(self) -> None:
        self._key: tuple[str, int, int] = ("", -1, 0)
        self._seq = 0
        self._said: list[_Said] = []
        self._items: list[bytes] = []
        self._first: list[bytes] = []

    def items(self, view: View, limit: int | None, ours: Collection[str]) -> list[Item]:
        """All, or the latest; calls that are not `ours` and have no result get one that says so."""
        if limit is not None and limit > 0 and not ours and self._key[1] < 0:
            found = [whole_of(view, message) for message in view.messages(last=limit)]
            if len(found) == limit:
                few = Shelf()
                few._take(found)
                return _decoded(few._shown(view, ours)[-limit:])
        self._bring_up(view)
        shown = [*self._first, *self._shown(view, ours)]
        if limit is not None and limit >= 0:
            shown = shown[-limit:] if limit else []
        return _decoded(shown)

    def placed(self, view: View) -> list[Placed]:
        """All of them, but for results that were made up."""
        self._bring_up(view)
        items, start, found = _decoded(self._items), 0, list[Placed]()
        for one in self._said:
            if not one.lost:
                found += [Placed(one.seq, one.time, item) for item in items[start : one.end]]
            start = one.end
        return found

    def _bring_up(self, view: View) -> None:
        core = view.mind.core
        key = (view.line.timeline, core.since, core.summary)
        if key != self._key or core.events < self._seq:
            self._read(view, key)
            return
        if core.events > self._seq:
            new = [whole_of(view, one) for one in _messages(view.events(self._seq, core.events))]
            lost = {one.lost for one in self._said if one.lost}
            if lost and any(lost.intersection(results_of(one)) for one in new):
                self._read(view, key)  # a real result came after all
                return
            self._take(new)
            self._seq = core.events

    def _read(self, view: View, key: tuple[str, int, int]) -> None:
        self._key, self._seq = key, view.mind.core.events
        self._said, self._items = [], []
        past = last_compaction(view)
        first = [] if past is None else rules_of(view)
        if past is not None and past.summary:
            first.append(summary_message(past))
        self._first = [_encode(item) for _, items in items_of(first) for item in items]
        events = view.events(key[1], self._seq)
        self._take([whole_of(view, message) for message in settled(list(_messages(events)))])

    def _take(self, messages: Iterable[Message]) -> None:
        for message, items in items_of(messages):
            self._items += map(_encode, items)
            ids = results_of(message) if message.extra.get("synthetic") else []
            self._said.append(
                _Said(message.seq, len(self._items), ids[0] if ids else "", message.time)
            )

    def _shown(self, view: View, ours: Collection[str]) -> list[bytes]:
        """A result that was made up is not shown to who made the call and may give the real one."""
        said, end = self._said, len(self._items)
        for at in range(len(said) - 1, -1, -1):
            if said[at].lost not in ours or not said[at].lost:
                break
            end = said[at - 1].end if at else 0
        shown = self._items[:end] if end < len(self._items) else self._items
        waiting = [call for call in view.mind.core.calling if call.id not in ours]
        if not waiting:
            return shown
        tail = _decoded(shown[-_TAIL:])
        return [*shown, *(_encode(one) for call in waiting for one in result_of(call, tail))]


_KEPT: WeakKeyDictionary[Session, Shelf] = WeakKeyDictionary()


def shelf_of(view: View) -> Shelf:
    """Of an opened session the same as long as it is open; else another each time: whoever reads
    what nobody keeps open finds that something was erased meanwhile."""
    return _KEPT.setdefault(view, Shelf()) if isinstance(view, Session) else Shelf()


def messages_in(view: View, last: int | None = None) -> list[tuple[Message, list[Item]]]:
    """Each with its items, or the last ones; without results that were made up."""
    several = view.messages() if last is None else view.messages(last=last)
    found = items_of(whole_of(view, message) for message in several)
    return [(message, items) for message, items in found if not message.extra.get("synthetic")]


def newest_in(view: View) -> Iterator[tuple[Message, list[Item]]]:
    """The same from the end on, for who wants only some: it costs what they do."""
    count, seen = _FEW, view.mind.core.events + 1
    while True:
        found = messages_in(view, count)
        yield from (pair for pair in reversed(found) if pair[0].seq < seen)
        if len(view.messages(last=count)) < count:
            return
        seen = min((message.seq for message, _ in found), default=seen)
        count *= 4


def _messages(events: Iterable[Event]) -> Iterable[Message]:
    return (message_of(one) for one in events if one.kind == "message" and not one.erased)


def _decoded(items: list[bytes]) -> list[Item]:
    return _decode(array_head(len(items)) + b"".join(items))
