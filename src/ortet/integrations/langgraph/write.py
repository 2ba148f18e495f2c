"""How what a thread was given comes into the journal of its session: in one write."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from ortet.hub.hub import Hub
from ortet.integrations.langgraph.branch_path import turned
from ortet.integrations.langgraph.head_index import note
from ortet.integrations.langgraph.messages import MARK
from ortet.integrations.langgraph.thread import PARTS, PUT, THREAD, Saved, Thread
from ortet.integrations.langgraph.values.encode import Maker
from ortet.integrations.langgraph.values.parts import Part, Tree
from ortet.journal.conversation.superseded import ASIDE, spans_of
from ortet.journal.events import Draft, Event, Ref
from ortet.sessions.actions.artifacts import store
from ortet.sessions.session import Session
from ortet.store.sweep_retry import repeated

_FULL = 1 << 18
"""Bytes of parts that go into one event."""


Record = tuple[str, dict[str, Any]]


def append(
    session: Session, thread: Thread, make: Maker, *, record: Record, thread_id: Any, now: bool
) -> Event:
    """A record with the messages and parts that are new in it, and with what is set aside by it:
    all of it is stored, or nothing. Unless `now`, with the next that is, or when the session is
    flushed."""
    session._touch()
    hub, (kind, data) = session.hub, record
    aside = turned(thread, kind, data, make.new, session.mind.core.aside)

    def add() -> tuple[list[Event], list[list[Part]]]:
        with hub.writing() if make.large else nullcontext():
            refs = _keep(hub, make)
            drafts = [] if thread.id is not None else [Draft(THREAD, {"id": thread_id}, hub.author)]
            drafts += [Draft(ASIDE, aside, hub.author)] if aside else []
            said = [part for part in make.new if part.stored is part.tree and part.is_message]
            drafts += [Draft("message", part.tree, hub.author) for part in said]
            *groups, last = _groups([part for part in make.new if part not in said])
            drafts += [Draft(PARTS, {"new": _stored(group)}, hub.author) for group in groups]
            whole = {**data, "new": _stored(last)} if last else data
            drafts.append(Draft(kind, whole, hub.author, refs))
            rows = note(session.id, thread, session._ledger.tip) if kind == PUT else ()
            events = session._ledger.add(*drafts, rows=rows, now=now or bool(refs))
        return events, [[part] for part in said] + [*groups, last]

    events, told = repeated(hub, add)
    for event, parts in zip(events[-len(told) :], told, strict=True):
        for part in parts:
            part.at = event.seq
    make.done()
    if thread.id is None:
        thread.id = thread_id
    thread.tell(kind, data, events[-1].seq)
    session._keep_pace(kind, data)
    return events[-1]


def _keep(hub: Hub, make: Maker) -> list[Ref]:
    """What is large into the store, and its place into what refers to it."""
    refs: list[Ref] = []
    for described, content in make.large:
        stored = store(hub.objects, content)
        described[1] = stored.oid
        refs += stored.refs
    if make.large:
        hub.objects.flush()
    return refs


def _stored(parts: list[Part]) -> list[list[Any]]:
    """As records have them."""
    return [[part.number, part.stored] for part in parts]


def _groups(parts: list[Part]) -> Iterator[list[Part]]:
    """No more in each than an event can hold; the last may be empty."""
    group, size = list[Part](), 0
    for part in parts:
        if size + len(part.raw) > _FULL:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part.raw)
    yield group


def values_of(
    make: Maker, checkpoint: Checkpoint, before: Saved | None, new: ChannelVersions
) -> dict[str, Tree]:
    """The values of a checkpoint. A channel whose version is the one of the checkpoint before is as
    it was there."""
    known = before.values if before is not None else {}
    rest = before.rest.get("channel_versions", {}) if before is not None else {}
    was = dict(rest["$d"]) if "$d" in rest else rest
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    found: dict[str, Tree] = {}
    for channel in [*values, *(one for one in versions if one not in values)]:
        same = channel in known and channel not in new and was.get(channel) == versions.get(channel)
        if same:
            found[channel] = known[channel]
        elif channel in values:
            found[channel] = make.channel(channel, values[channel], known.get(channel))
    return found


def is_ours(event: Event) -> bool:
    """Whether an event is part of a thread."""
    if event.erased or event.kind == THREAD:
        return False
    if event.kind == ASIDE:
        return True
    if event.kind == "message":
        return MARK in event.data.get("extra", {})
    return event.kind.startswith("langgraph.")


def copies(events: Sequence[Event], after: int) -> Iterator[Draft]:
    """The same events, which follow event `after` of another journal."""
    old = [event.seq for event in events]
    for event in events:
        data = _moved(event.data, old, after) if event.kind == ASIDE else event.data
        refs = [(ref[0], ref[1]) for ref in event.refs]
        yield msgspec.structs.replace(Draft(event.kind, data, event.actor), refs=refs)


def _moved(data: dict[str, Any], old: Sequence[int], after: int) -> dict[str, Any]:
    """Spans of events, by the numbers that these have there."""
    found: dict[str, Any] = {}
    for word in ("out", "back"):
        spans = [
            [after + 1 + bisect_left(old, first), after + bisect_right(old, last)]
            for first, last in spans_of(data, word)
        ]
        found[word] = [span for span in spans if span[0] <= span[1]]
    return found
