"""Which messages are of the branch of checkpoints that a thread is on.

What the checkpoints of a way hold is of that way, whenever it was said. What none of them holds, as
it was said in a graph inside or is still to be taken in, is of the way of the next that was put.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from langgraph.constants import START

from ortet.integrations.langgraph.thread import DROP, PUT, Saved, Thread
from ortet.integrations.langgraph.values.message_refs import Held, Set
from ortet.integrations.langgraph.values.parts import Part, Tree
from ortet.journal.conversation.superseded import Span, joined


def turned(
    thread: Thread, kind: str, data: dict[str, Any], new: Sequence[Part], aside: Sequence[Span]
) -> dict[str, Any] | None:
    """What an event "aside" says before a record, whose `new` parts are not stored yet; `aside` is
    what is so far. None where nothing changes."""
    if not _may_turn(kind, data) or (tip := thread.head("")) is None:
        return None
    to = _left(thread, data) if kind == DROP else data.get("parent", tip.id)
    start, values = thread.saved("", to), data.get("values", {})
    if start is tip and not aside:
        return None
    try:
        if start is not None and start is not tip:
            trees = [*values.values(), *_deltas(thread, values, start)]
            parted = _parted(thread, tip, start, thread.held.of(trees, new))
        else:
            written = (write.tree for write in thread.writes("", tip.id))
            parted = _Parted(thread.held.of([*values.values(), *written], new))
        return _told(thread.held, parted, aside)
    except Exception:  # of records that somebody else wrote: what is put now does not suffer by it
        return None


def _may_turn(kind: str, data: dict[str, Any]) -> bool:
    """A checkpoint of the graph itself, not in its place again; or some are dropped."""
    return kind == DROP or (kind == PUT and not data["ns"] and "again" not in data)


def _left(thread: Thread, data: dict[str, Any]) -> str | None:
    """The latest that is not dropped."""
    gone = {id_ for ns, id_ in data["ids"] if not ns}
    return next((one.id for one in thread.newest_first("") if one.id not in gone), None)


class _Parted(NamedTuple):
    """Messages that are held or were said on the way that is taken, and on the one that is left."""

    stays: Set
    leaves: Set = 0


def _parted(thread: Thread, tip: Saved, start: Saved, holds: Set) -> _Parted:
    """`holds`: what is held by the checkpoint that is put now."""
    held, (left, taken, common) = thread.held, _ways(thread, tip, start)
    gone, mine = {one.id for one in left}, {one.id for one in taken}
    here, there, others = list[Span](), list[Span](), list[Saved]()
    for spot in {one.parent for one in (*left, *taken)} | {tip.id, start.id}:
        work, children = thread.work(spot), thread.children(spot)
        if len(children) == 1 and children[0].id in gone and spot != start.id:
            there += work  # as below: most of a long way is like that
            continue
        others += [one for one in children if one.id not in mine and one.id not in gone]
        for span in work:
            taker = _taker(children, span)
            if spot == start.id and span[1] > tip.first:
                here.append(span)  # for what is put now
            elif taker is None or taker.id in gone:
                there.append(span)
            elif taker.id in mine:
                here.append(span)
    ends = [] if common is None else [common]
    stays, leaves = holds | held.of(_values([*taken, *ends])), held.of(_values(left))
    if spoken := held.said_in(joined(here)) & ~stays & ~leaves:
        stays |= spoken & ~held.of(_values(others))
    leaves |= held.of(_written(thread, [*left, *ends])) | held.said_in(joined(there))
    return _Parted(stays, leaves)


def _taker(children: Sequence[Saved], span: Span) -> Saved | None:
    """Which checkpoint took in what was said on the way to it: the next, unless somebody has been
    elsewhere meanwhile; or the last, as background threads may store writes after it."""
    at = bisect_right(children, span[1], key=lambda one: one.first)
    last = children[at - 1] if at else None
    if at == len(children) or children[at].follows >= span[1]:
        return last
    return children[at]


def _ways(
    thread: Thread, tip: Saved, start: Saved
) -> tuple[list[Saved], list[Saved], Saved | None]:
    """The checkpoints of each way behind the last that both have, which is the third."""
    left, taken = list[Saved](), list[Saved]()
    here: Saved | None = tip
    there: Saved | None = start
    while here is not there:
        if there is None or (here is not None and here.first > there.first):
            assert here is not None
            left.append(here)
            here = _before(thread, here)
        else:
            taken.append(there)
            there = _before(thread, there)
    return left, taken, here


def _before(thread: Thread, one: Saved) -> Saved | None:
    """None also where somebody has put it before that one: there is no way in a circle."""
    found = thread.saved("", one.parent)
    return found if found is not None and found.first < one.first else None


def _values(saved: Iterable[Saved]) -> Iterator[Tree]:
    """But what is only asked: who goes on from there may ask otherwise."""
    return (tree for one in saved for name, tree in one.values.items() if name != START)


def _written(thread: Thread, saved: Iterable[Saved]) -> Iterator[Tree]:
    """To channels that store deltas: the values do not have it."""
    if thread.deltas:
        for one in saved:
            written = thread.writes("", one.id)
            yield from (write.tree for write in written if write.channel in thread.deltas)


def _deltas(thread: Thread, values: dict[str, Tree], before: Saved | None) -> Iterator[Tree]:
    """What channels that store deltas are made of: what was written in the checkpoints before, from
    where they were stored as a whole."""
    rest = set(thread.deltas)
    while rest := {name for name in rest if type(values.get(name)) is not dict}:
        if before is None:
            return
        yield from (write.tree for write in thread.writes("", before.id))
        yield from (before.values.get(name) for name in rest)
        values, before = before.values, _before(thread, before)


def _told(held: Held, parted: _Parted, aside: Sequence[Span]) -> dict[str, Any] | None:
    """Spans may go over messages about which they change nothing."""
    stays, was = parted.stays, held.aside(aside)
    out, back = parted.leaves & ~stays & ~was, was & stays
    found = {
        "out": held.spans(out, held.without(out | was) | back),
        "back": held.spans(back, was ^ back),
    }
    return {word: spans for word, spans in found.items() if spans} or None
