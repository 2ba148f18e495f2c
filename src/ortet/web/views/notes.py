"""Commits of a tree, read once and put in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ortet.cli.output import safe
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.ids import Oid

_TITLE, _REST = 200, 300
"""Characters of the first line of a message, and of what follows it."""


class Note(NamedTuple):
    """What a drawing needs of a commit."""

    parents: tuple[Oid, ...]
    title: str
    rest: str
    ms: int
    author: str


def read(hub: Hub, notes: dict[Oid, Note], tips: Iterable[Oid]) -> dict[Oid, Note]:
    """All that lead to these, as far as they are there: reflogs outlive what they name."""
    found: dict[Oid, Note] = {}
    todo = list(tips)
    while todo:
        oid = todo.pop()
        if oid in found:
            continue
        note = noted(hub, notes, oid)
        if note is not None:
            found[oid] = note
            todo += note.parents
    return found


def newest(
    hub: Hub, notes: dict[Oid, Note], heads: Iterable[Oid], count: int
) -> tuple[list[Oid], dict[Oid, Note]] | None:
    """The first so many by time, if that is an order with no commit before its children."""
    found: dict[Oid, Note] = {}
    ready: list[tuple[int, Oid]] = []

    def add(oids: Iterable[Oid]) -> None:
        for oid in oids:
            note = None if oid in found else noted(hub, notes, oid)
            if note is not None:
                found[oid] = note
                heappush(ready, (-note.ms, oid))

    add(heads)
    order: list[Oid] = []
    while ready and len(order) < count:
        ms, oid = heappop(ready)
        if order and -ms >= found[order[-1]].ms:
            return None
        order.append(oid)
        add(found[oid].parents)
    return order, found


def noted(hub: Hub, notes: dict[Oid, Note], oid: Oid) -> Note | None:
    note = notes.get(oid)
    if note is None:
        try:
            note = notes[oid] = _note(hub, oid)
        except OrtetError:
            return None
    return note


def _note(hub: Hub, oid: Oid) -> Note:
    commit = hub.history.read(oid)
    first, _, rest = commit.message.strip().partition("\n")
    return Note(
        parents=tuple(map(Oid, commit.parents)),
        title=safe(first[:_TITLE]),
        rest=safe(" ".join(rest[: 2 * _REST].split())[:_REST]),
        ms=commit.time // 1_000_000,
        author=safe(commit.author[:_TITLE]),
    )


def ancestors(graph: dict[Oid, Note], heads: Iterable[Oid]) -> Iterator[Oid]:
    stack = list(heads)
    seen = set(stack)
    while stack:
        oid = stack.pop()
        yield oid
        for parent in graph[oid].parents if oid in graph else ():
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)


def in_order(graph: dict[Oid, Note]) -> Iterator[Oid]:
    """Newest first, no commit before one that descends from it."""
    children = dict.fromkeys(graph, 0)
    for note in graph.values():
        for parent in note.parents:
            if parent in children:
                children[parent] += 1
    ready = [(-graph[oid].ms, oid) for oid, count in children.items() if not count]
    heapify(ready)
    while ready:
        oid = heappop(ready)[1]
        yield oid
        for parent in graph[oid].parents:
            if parent in children:
                children[parent] -= 1
                if not children[parent]:
                    heappush(ready, (-graph[parent].ms, parent))
