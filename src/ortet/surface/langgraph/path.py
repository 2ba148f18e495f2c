"""Which messages are of the branch of checkpoints that a thread is on.

What the checkpoints of a way hold is of that way, whenever it was said. What none of them holds, as
it was said in a graph inside or is still to be taken in, is of the way of the next that was put.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from langgraph.constants import START

from ortet.journal.aside import Span, is_aside, joined, without
from ortet.surface.langgraph.heap import FIRST, Heap
from ortet.surface.langgraph.parts import Part, Tree
from ortet.surface.langgraph.thread import DROP, PUT, Saved, Thread


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
            parted = _parted(thread, tip, start, _numbers(thread.heap, trees, new))
        else:
            written = (write.tree for write in thread.writes("", tip.id))
            holds = _numbers(thread.heap, [*values.values(), *written], new)
            parted = _Parted(_anew(thread.heap, tip, holds, new, aside))
        return _told(_said(thread.heap, new), parted, aside) if any(parted) else None
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
    """Numbers of messages that are held on the way that is taken, on the one that is left, and on
    others that part from the first; and spans of events in which something was said on the one that
    is taken, and on the one that is left."""

    holds: list[Span]
    held: Sequence[Span] = ()
    others: Sequence[Span] = ()
    here: Sequence[Span] = ()
    there: Sequence[Span] = ()


def _anew(
    heap: Heap, tip: Saved, holds: list[Span], new: Iterable[Part], aside: Sequence[Span]
) -> list[Span]:
    """What is set aside, and is said again since the last checkpoint."""
    more = without(holds, _numbers(heap, tip.values.values()))
    old = heap.parts([[first, min(last + 1, heap.next[0])] for first, last in more])
    said = ((part.number, heap.part(_first(part))) for part in (*old, *new) if part.is_message)
    return joined((n, n) for n, part in said if part is not None and is_aside(aside, part.at))


def _first(part: Part) -> int:
    """The number under which a message was said; LangGraph may have given it its id then."""
    return part.number if part.stored is part.tree else int(part.stored["$i"][0])


def _parted(thread: Thread, tip: Saved, start: Saved, holds: list[Span]) -> _Parted:
    """`holds`: what is held by the checkpoint that is put now."""
    heap, (left, taken, common) = thread.heap, _ways(thread, tip, start)
    gone, mine = {one.id for one in left}, {one.id for one in taken}
    here, there, others = list[Span](), list[Span](), list[Saved]()
    for spot in {one.parent for one in (*left, *taken)} | {tip.id, start.id}:
        children = thread.children(spot)
        others += [one for one in children if one.id not in mine]
        for span in thread.work(spot):
            taker = _taker(children, span)
            if spot == start.id and span[1] > tip.first:
                here.append(span)  # for what is put now
            elif taker is None or taker.id in gone:
                there.append(span)
            elif taker.id in mine:
                here.append(span)
    ends = [] if common is None else [common]
    return _Parted(
        holds=joined([*holds, *_numbers(heap, _values([*taken, *ends]))]),
        held=_numbers(heap, _values(left)),
        others=_numbers(heap, _values(others)),
        here=joined(here),
        there=joined(there),
    )


def _taker(children: Sequence[Saved], span: Span) -> Saved | None:
    """Which checkpoint took in what was said on the way to it: the next, unless somebody has been
    elsewhere meanwhile; or the last, as background threads may store writes after it."""
    last = None
    for one in children:
        if one.first > span[1]:
            return one if one.follows < span[1] else last
        last = one
    return last


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


def _numbers(heap: Heap, trees: Iterable[Tree], new: Sequence[Part] = ()) -> list[Span]:
    """Of the messages that trees hold, also in parts that are `new`."""
    queue, seen, found = list(trees), set[int](), set[Span]()
    while queue:
        tree = queue.pop()
        if type(tree) is list:
            queue += tree
            continue
        if type(tree) is not dict:
            continue
        (name, *others) = tree or [""]
        if others or name not in ("$m", "$l", "$s", "$d"):
            queue += [] if name in ("$b", "$o") else tree.values()
            continue
        if name in ("$s", "$d"):
            queue.append(tree[name])
            continue
        rows = [[tree[name]]] if name == "$m" else tree[name]
        for first, *end in rows:
            stop = end[0] if end else first + 1
            if first < FIRST:
                found.add((first, stop - 1))
                continue
            fresh = (part for part in new if first <= part.number < stop)
            for part in (*heap.parts([[first, stop]]), *fresh):
                if part.number not in seen:
                    seen.add(part.number)
                    queue.append(part.tree)
    return joined(found)


def _said(heap: Heap, new: Sequence[Part]) -> list[tuple[int, list[int]]]:
    """Messages in order: the event of each, and the numbers that it has."""
    names: dict[int, list[int]] = {}
    for part in (*heap.messages(), *new):
        if part.is_message:
            names.setdefault(_first(part), []).append(part.number)
    found = ((heap.part(said), numbers) for said, numbers in names.items())
    return sorted((part.at, numbers) for part, numbers in found if part is not None)


def _told(
    said: list[tuple[int, list[int]]], parted: _Parted, aside: Sequence[Span]
) -> dict[str, Any] | None:
    out, back = list[tuple[int, bool | None]](), list[tuple[int, bool | None]]()
    for at, numbers in said:

        def within(spans: Sequence[Span], numbers: list[int] = numbers) -> bool:
            return any(is_aside(spans, one) for one in numbers)

        spoken = is_aside(parted.here, at) and not within(parted.others)
        stays = spoken or within(parted.holds)
        leaves = is_aside(parted.there, at) or within(parted.held)
        was = is_aside(aside, at)
        out.append((at, None if was and not stays else leaves and not stays))
        back.append((at, None if not was else stays))
    found = {"out": _runs(out), "back": _runs(back)}
    return {word: spans for word, spans in found.items() if spans} or None


def _runs(events: Iterable[tuple[int, bool | None]]) -> list[list[int]]:
    """Those that are meant, as few spans; None may be within one."""
    found: list[list[int]] = []
    is_open = False
    for at, meant in events:
        if meant and is_open:
            found[-1][1] = at
        elif meant:
            found.append([at, at])
        is_open = bool(meant) or (is_open and meant is None)
    return found
