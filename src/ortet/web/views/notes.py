"""Reads commits for the timeline graph, and sorts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ortet.cli.output import safe
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.ids import Oid

_MAX_TITLE_CHARACTERS, _MAX_BODY_CHARACTERS = 200, 300
"""Maximum lengths of the first line of a message and of the rest."""


class CommitNode(NamedTuple):
    """The fields of a commit that the graph needs."""

    parents: tuple[Oid, ...]
    title: str
    rest: str
    ms: int
    author: str


def read_graph(
    hub: Hub, cache: dict[Oid, CommitNode], tips: Iterable[Oid]
) -> dict[Oid, CommitNode]:
    """Return all ancestors of `tips` that still exist. Reflogs may name commits that are gone."""
    found: dict[Oid, CommitNode] = {}
    todo = list(tips)
    while todo:
        oid = todo.pop()
        if oid in found:
            continue
        note = cached_node(hub, cache, oid)
        if note is not None:
            found[oid] = note
            todo += note.parents
    return found


def newest_commits(
    hub: Hub, cache: dict[Oid, CommitNode], heads: Iterable[Oid], count: int
) -> tuple[list[Oid], dict[Oid, CommitNode]] | None:
    """Return the newest `count` commits by time, or None if that is not a topological order."""
    found: dict[Oid, CommitNode] = {}
    ready: list[tuple[int, Oid]] = []

    def add(oids: Iterable[Oid]) -> None:
        for oid in oids:
            note = None if oid in found else cached_node(hub, cache, oid)
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


def cached_node(hub: Hub, cache: dict[Oid, CommitNode], oid: Oid) -> CommitNode | None:
    """Return a commit from the cache or the store, or None if it is gone."""
    note = cache.get(oid)
    if note is None:
        try:
            note = cache[oid] = _read_node(hub, oid)
        except OrtetError:
            return None
    return note


def _read_node(hub: Hub, oid: Oid) -> CommitNode:
    commit = hub.history.read(oid)
    first, _, rest = commit.message.strip().partition("\n")
    return CommitNode(
        parents=tuple(map(Oid, commit.parents)),
        title=safe(first[:_MAX_TITLE_CHARACTERS]),
        rest=safe(" ".join(rest[: 2 * _MAX_BODY_CHARACTERS].split())[:_MAX_BODY_CHARACTERS]),
        ms=commit.time // 1_000_000,
        author=safe(commit.author[:_MAX_TITLE_CHARACTERS]),
    )


def ancestors(graph: dict[Oid, CommitNode], heads: Iterable[Oid]) -> Iterator[Oid]:
    """Yield `heads` and all their ancestors."""
    stack = list(heads)
    seen = set(stack)
    while stack:
        oid = stack.pop()
        yield oid
        for parent in graph[oid].parents if oid in graph else ():
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)


def topological_order(graph: dict[Oid, CommitNode]) -> Iterator[Oid]:
    """Yield commits newest first, children before parents."""
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
