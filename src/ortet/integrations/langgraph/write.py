"""Appends a thread record with its new messages and parts to the journal, in one transaction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from ortet.hub.hub import Hub, hub_of
from ortet.integrations.langgraph.branch_path import superseded_event_data
from ortet.integrations.langgraph.head_index import head_index_rows
from ortet.integrations.langgraph.messages import EXTRA_KEY
from ortet.integrations.langgraph.thread import PARTS, PUT, THREAD, GraphThread, StoredCheckpoint
from ortet.integrations.langgraph.values.encode import ValueEncoder
from ortet.integrations.langgraph.values.parts import Tree, ValuePart
from ortet.journal.conversation.superseded import SUPERSEDED_KIND, ranges_of
from ortet.journal.events import Draft, Event, ObjectRef
from ortet.sessions.actions.artifacts import store_content
from ortet.sessions.session import Session
from ortet.store.sweep_retry import run_with_sweep_retry

_MAX_EVENT_BYTES = 1 << 18
"""Bytes of parts that one event holds."""


ThreadRecord = tuple[str, dict[str, Any]]


def append(
    session: Session,
    thread: GraphThread,
    encoder: ValueEncoder,
    *,
    record: ThreadRecord,
    thread_id: Any,
    durable: bool,
) -> Event:
    """Append a record with its new messages and parts, all or nothing.

    Messages of a branch that the record leaves are marked as superseded. With `durable` False the
    record is stored with the next durable one, or when the session is flushed.
    """
    session.internals.pipeline.begin_change()
    hub, (kind, data) = hub_of(session), record
    aside = superseded_event_data(
        thread, kind, data, encoder.new_parts, session.internals.state.core.aside
    )

    def add() -> tuple[list[Event], list[list[ValuePart]]]:
        with hub.store.writing() if encoder.large_values else nullcontext():
            refs = _store_large_values(hub, encoder)
            drafts = (
                []
                if thread.id is not None
                else [Draft(THREAD, {"id": thread_id}, hub.store.author)]
            )
            drafts += [Draft(SUPERSEDED_KIND, aside, hub.store.author)] if aside else []
            message_parts = [
                part for part in encoder.new_parts if part.stored is part.tree and part.is_message
            ]
            drafts += [Draft("message", part.tree, hub.store.author) for part in message_parts]
            *groups, last = _groups(
                [part for part in encoder.new_parts if part not in message_parts]
            )
            drafts += [
                Draft(PARTS, {"new": _part_records(group)}, hub.store.author) for group in groups
            ]
            whole = {**data, "new": _part_records(last)} if last else data
            drafts.append(Draft(kind, whole, hub.store.author, refs))
            rows = (
                head_index_rows(session.id, thread, session.internals.pipeline.writer.tip)
                if kind == PUT
                else ()
            )
            events = session.internals.pipeline.writer.add(
                *drafts, rows=rows, durable=durable or bool(refs)
            )
        return events, [[part] for part in message_parts] + [*groups, last]

    events, part_groups = run_with_sweep_retry(hub.store, add)
    for event, parts in zip(events[-len(part_groups) :], part_groups, strict=True):
        for part in parts:
            part.seq = event.seq
    encoder.finish()
    if thread.id is None:
        thread.id = thread_id
    thread.apply_record(kind, data, events[-1].seq)
    session.internals.pipeline.auto_commit_if_due(kind, data)
    return events[-1]


def _store_large_values(hub: Hub, encoder: ValueEncoder) -> list[ObjectRef]:
    """Store large values as objects and write their ids into the trees that refer to them."""
    refs: list[ObjectRef] = []
    for described, content in encoder.large_values:
        stored = store_content(hub.objects, content)
        described[1] = stored.oid
        refs += stored.refs
    if encoder.large_values:
        hub.objects.flush()
    return refs


def _part_records(parts: list[ValuePart]) -> list[list[Any]]:
    return [[part.number, part.stored] for part in parts]


def _groups(parts: list[ValuePart]) -> Iterator[list[ValuePart]]:
    """Group parts so that each group fits into one event; the last group may be empty."""
    group, size = list[ValuePart](), 0
    for part in parts:
        if size + len(part.raw) > _MAX_EVENT_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part.raw)
    yield group


def values_of(
    encoder: ValueEncoder,
    checkpoint: Checkpoint,
    before: StoredCheckpoint | None,
    new: ChannelVersions,
) -> dict[str, Tree]:
    """Encode the channel values of a checkpoint.

    A channel with the version of the previous checkpoint keeps its tree.
    """
    known = before.values if before is not None else {}
    rest = before.rest.get("channel_versions", {}) if before is not None else {}
    was = dict(rest["$d"]) if "$d" in rest else rest
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    trees: dict[str, Tree] = {}
    for channel in [*values, *(one for one in versions if one not in values)]:
        same = channel in known and channel not in new and was.get(channel) == versions.get(channel)
        if same:
            trees[channel] = known[channel]
        elif channel in values:
            trees[channel] = encoder.channel(channel, values[channel], known.get(channel))
    return trees


def is_thread_event(event: Event) -> bool:
    """Return True if the event belongs to a thread."""
    if event.erased or event.kind == THREAD:
        return False
    if event.kind == SUPERSEDED_KIND:
        return True
    if event.kind == "message":
        return EXTRA_KEY in event.data.get("extra", {})
    return event.kind.startswith("langgraph.")


def copy_events(events: Sequence[Event], after: int) -> Iterator[Draft]:
    """Yield copies of events that will follow event `after` of another journal."""
    old = [event.seq for event in events]
    for event in events:
        data = (
            _renumber_spans(event.data, old, after) if event.kind == SUPERSEDED_KIND else event.data
        )
        refs = [(ref[0], ref[1]) for ref in event.refs]
        yield msgspec.structs.replace(Draft(event.kind, data, event.actor), refs=refs)


def _renumber_spans(data: dict[str, Any], old: Sequence[int], after: int) -> dict[str, Any]:
    """Map event spans to the event numbers in the other journal."""
    renumbered: dict[str, Any] = {}
    for word in ("out", "back"):
        spans = [
            [after + 1 + bisect_left(old, first), after + bisect_right(old, last)]
            for first, last in ranges_of(data, word)
        ]
        renumbered[word] = [span for span in spans if span[0] <= span[1]]
    return renumbered
