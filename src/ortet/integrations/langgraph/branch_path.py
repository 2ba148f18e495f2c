"""Decides which messages belong to the branch of checkpoints that a thread is on.

A message in a checkpoint belongs to the branch of that checkpoint, whenever it was written. A
message in no checkpoint belongs to the branch of the next checkpoint that was put. Such a message
comes from a subgraph, or no checkpoint has taken it in yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from langgraph.constants import START

from ortet.integrations.langgraph.thread import DROP, PUT, GraphThread, StoredCheckpoint
from ortet.integrations.langgraph.values.message_refs import MessageRefs, MessageSet
from ortet.integrations.langgraph.values.parts import Tree, ValuePart
from ortet.journal.conversation.superseded import SeqRange, merge_ranges


def superseded_event_data(
    thread: GraphThread,
    kind: str,
    data: dict[str, Any],
    new: Sequence[ValuePart],
    superseded: Sequence[SeqRange],
) -> dict[str, Any] | None:
    """Return the data of the event that moves messages out of or back into the conversation.

    The event is written before the record `kind` with `data`.

    Args:
        thread: the thread.
        kind: the kind of the record that is about to be written.
        data: the data of that record.
        new: its parts, which are not stored yet.
        superseded: the event ranges that are superseded so far.

    Returns:
        None if nothing changes.
    """
    if not _can_switch_branch(kind, data) or (tip := thread.head("")) is None:
        return None
    to = _latest_remaining_id(thread, data) if kind == DROP else data.get("parent", tip.id)
    start, values = thread.get_checkpoint("", to), data.get("values", {})
    if start is tip and not superseded:
        return None
    try:
        if start is not None and start is not tip:
            trees = [*values.values(), *_delta_trees(thread, values, start)]
            parted = _split_messages(thread, tip, start, thread.message_refs.in_trees(trees, new))
        else:
            written = (write.tree for write in thread.writes("", tip.id))
            parted = _MessageSplit(thread.message_refs.in_trees([*values.values(), *written], new))
        return _superseded_spans(thread.message_refs, parted, superseded)
    except Exception:  # Another program wrote invalid records. They must not prevent this write.
        return None


def _can_switch_branch(kind: str, data: dict[str, Any]) -> bool:
    """Return True for a new checkpoint of the root graph and for a deletion of checkpoints."""
    return kind == DROP or (kind == PUT and not data["ns"] and "again" not in data)


def _latest_remaining_id(thread: GraphThread, data: dict[str, Any]) -> str | None:
    """Return the id of the latest checkpoint that the deletion leaves."""
    gone = {id_ for ns, id_ in data["ids"] if not ns}
    return next((one.id for one in thread.newest_first("") if one.id not in gone), None)


class _MessageSplit(NamedTuple):
    """Messages on the branch that is entered, and messages on the branch that is left."""

    on_branch: MessageSet
    off_branch: MessageSet = 0


def _split_messages(
    thread: GraphThread, tip: StoredCheckpoint, start: StoredCheckpoint, new_messages: MessageSet
) -> _MessageSplit:
    """Split the messages between the old tip and the new start.

    `new_messages` are the messages in the checkpoint that is put now.
    """
    held, (left, taken, common) = thread.message_refs, _diverging_paths(thread, tip, start)
    gone, mine = {one.id for one in left}, {one.id for one in taken}
    here, there, others = list[SeqRange](), list[SeqRange](), list[StoredCheckpoint]()
    for spot in {one.parent for one in (*left, *taken)} | {tip.id, start.id}:
        work, children = thread.work(spot), thread.children(spot)
        if len(children) == 1 and children[0].id in gone and spot != start.id:
            there += work  # shortcut for the loop below; most of a long path is like this
            continue
        others += [one for one in children if one.id not in mine and one.id not in gone]
        for span in work:
            taker = _receiving_checkpoint(children, span)
            if spot == start.id and span[1] > tip.first_seq:
                here.append(span)  # for the checkpoint that is put now
            elif taker is None or taker.id in gone:
                there.append(span)
            elif taker.id in mine:
                here.append(span)
    ends = [] if common is None else [common]
    stays, leaves = (
        new_messages | held.in_trees(_values([*taken, *ends])),
        held.in_trees(_values(left)),
    )
    if spoken := held.in_events(merge_ranges(here)) & ~stays & ~leaves:
        stays |= spoken & ~held.in_trees(_values(others))
    leaves |= held.in_trees(_delta_write_trees(thread, [*left, *ends])) | held.in_events(
        merge_ranges(there)
    )
    return _MessageSplit(stays, leaves)


def _receiving_checkpoint(
    children: Sequence[StoredCheckpoint], span: SeqRange
) -> StoredCheckpoint | None:
    """Return the checkpoint that took in the messages of a span.

    It is the next child, unless the thread was on another branch in between. It may also be the
    last one, because background threads may store writes after it.
    """
    at = bisect_right(children, span[1], key=lambda one: one.first_seq)
    last = children[at - 1] if at else None
    if at == len(children) or children[at].previous_seq >= span[1]:
        return last
    return children[at]


def _diverging_paths(
    thread: GraphThread, tip: StoredCheckpoint, start: StoredCheckpoint
) -> tuple[list[StoredCheckpoint], list[StoredCheckpoint], StoredCheckpoint | None]:
    """Return the checkpoints of both paths after their common ancestor, and that ancestor."""
    left, taken = list[StoredCheckpoint](), list[StoredCheckpoint]()
    here: StoredCheckpoint | None = tip
    there: StoredCheckpoint | None = start
    while here is not there:
        if there is None or (here is not None and here.first_seq > there.first_seq):
            assert here is not None
            left.append(here)
            here = _parent_checkpoint(thread, here)
        else:
            taken.append(there)
            there = _parent_checkpoint(thread, there)
    return left, taken, here


def _parent_checkpoint(
    thread: GraphThread, checkpoint: StoredCheckpoint
) -> StoredCheckpoint | None:
    """Return the parent checkpoint.

    Return None also if the parent was put later than its child, to exclude cycles.
    """
    parent = thread.get_checkpoint("", checkpoint.parent)
    return parent if parent is not None and parent.first_seq < checkpoint.first_seq else None


def _values(checkpoints: Iterable[StoredCheckpoint]) -> Iterator[Tree]:
    """Yield all channel values except the input: another run from there may have other input."""
    return (tree for one in checkpoints for name, tree in one.values.items() if name != START)


def _delta_write_trees(
    thread: GraphThread, checkpoints: Iterable[StoredCheckpoint]
) -> Iterator[Tree]:
    """Yield the writes to delta channels, which are not part of the channel values."""
    if thread.delta_channels:
        for one in checkpoints:
            written = thread.writes("", one.id)
            yield from (write.tree for write in written if write.channel in thread.delta_channels)


def _delta_trees(
    thread: GraphThread, values: dict[str, Tree], before: StoredCheckpoint | None
) -> Iterator[Tree]:
    """Yield the trees that delta channels are composed of.

    These are the writes of earlier checkpoints, back to the last complete value.
    """
    rest = set(thread.delta_channels)
    while rest := {name for name in rest if type(values.get(name)) is not dict}:
        if before is None:
            return
        yield from (write.tree for write in thread.writes("", before.id))
        yield from (before.values.get(name) for name in rest)
        values, before = before.values, _parent_checkpoint(thread, before)


def _superseded_spans(
    message_refs: MessageRefs, split: _MessageSplit, superseded: Sequence[SeqRange]
) -> dict[str, Any] | None:
    """Return the event spans to move out and back; None if there are none.

    A span may include messages whose state does not change.
    """
    stays, was = split.on_branch, message_refs.superseded(superseded)
    out, back = split.off_branch & ~stays & ~was, was & stays
    spans_by_field = {
        "out": message_refs.spans(out, message_refs.all_except(out | was) | back),
        "back": message_refs.spans(back, was ^ back),
    }
    return {word: spans for word, spans in spans_by_field.items() if spans} or None
