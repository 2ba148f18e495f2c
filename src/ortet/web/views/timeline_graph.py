"""The commit graph of a family of sessions, and its cache.

A commit never changes, so it is read once. The graph is built again when a head has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from heapq import heapify, heappop, heappush
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from ortet.cli.terminal.output import safe
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.ids import Oid, to_hex
from ortet.server.auth.tokens import Caller
from ortet.server.schemas import visible_sessions
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.swarm_api import SwarmResult as Swarm
from ortet.sessions.table import SessionRow

# Lane layout of the commit graph: a branch keeps its lane down to where it began.
#
# `history.graph_layout` saves columns for a terminal; here each lane is a line that can be
# followed.


class LanePosition(NamedTuple):
    """The position of one commit.

    `to` are the lanes of its parents. `joins` are other lanes that end here, because they lead to
    this commit.
    """

    lane: int
    to: list[int]
    joins: list[int]


def lay_out(
    commits: Iterable[tuple[str, Sequence[str]]], trunk: Sequence[str] = ()
) -> Iterator[LanePosition]:
    """Yield the position of each commit.

    Args:
        commits: (oid, parents) pairs, children before parents.
        trunk: Commits that get the leftmost lanes, in order. Their first parents stay in the same
            lane.
    """
    waiting: dict[str, list[int]] = {oid: [lane] for lane, oid in enumerate(dict.fromkeys(trunk))}
    free: list[int] = []
    size = len(waiting)
    for oid, parents in commits:
        lanes = sorted(waiting.pop(oid, ()))
        if lanes:
            lane, joins = lanes[0], lanes[1:]
        else:
            lane, size = (heappop(free), size) if free else (size, size + 1)
            joins = []
        for gone in joins:
            heappush(free, gone)
        to: list[int] = []
        for n, parent in enumerate(dict.fromkeys(parents)):
            known = waiting.setdefault(parent, [])
            if n == 0:
                column = lane
                known.append(column)
            elif known:
                column = min(known)
            else:
                column, size = (heappop(free), size) if free else (size, size + 1)
                known.append(column)
            to.append(column)
        if not to:
            heappush(free, lane)
        yield LanePosition(lane, to, joins)


# Reads commits for the timeline graph, and sorts them.

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
    nodes: dict[Oid, CommitNode] = {}
    todo = list(tips)
    while todo:
        oid = todo.pop()
        if oid in nodes:
            continue
        note = cached_node(hub, cache, oid)
        if note is not None:
            nodes[oid] = note
            todo += note.parents
    return nodes


def newest_commits(
    hub: Hub, cache: dict[Oid, CommitNode], heads: Iterable[Oid], count: int
) -> tuple[list[Oid], dict[Oid, CommitNode]] | None:
    """Return the newest `count` commits by time, or None if that is not a topological order."""
    nodes: dict[Oid, CommitNode] = {}
    ready: list[tuple[int, Oid]] = []

    def add(oids: Iterable[Oid]) -> None:
        for oid in oids:
            note = None if oid in nodes else cached_node(hub, cache, oid)
            if note is not None:
                nodes[oid] = note
                heappush(ready, (-note.ms, oid))

    add(heads)
    order: list[Oid] = []
    while ready and len(order) < count:
        ms, oid = heappop(ready)
        if order and -ms >= nodes[order[-1]].ms:
            return None
        order.append(oid)
        add(nodes[oid].parents)
    return order, nodes


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


# Reads the swarms of a session for the pages.swarm`.

__all__ = ["Swarm", "swarms_of"]


def swarms_of(hub: Hub, row: SessionRow) -> list[Swarm]:
    """Return the swarms of a session without loading its state.

    A family may have hundreds of sessions.
    """
    from ortet.swarm import records

    swarms = sorted(records.list_swarms(hub.catalog, row.id), key=lambda one: one.made)
    return [
        records.swarm_result(
            one, records.SwarmRecords(hub.catalog, row.id, one.id).attempts(), row.name
        )
        for one in swarms
    ]


_MAX_CACHED_COMMITS = 100_000
"""Maximum number of cached commits, about 40 MB. Beyond that the cache is cleared."""
_MAX_CACHED_GRAPHS = 16
PARTIAL_TAG = "sketch"


class CommitLabel(NamedTuple):
    """A label of a commit.

    `kind` is head (of the shown session), branch, tag, attempt, kept or live.
    """

    kind: str
    text: str
    to: str = ""  # a session id


class TimelineGraph(msgspec.Struct, frozen=True):
    """The rows of the graph, newest first, stored by column.

    `to` are the lanes to the parents. `joins` are lanes of others that end in a commit. `away`: no
    head leads to the commit.
    """

    tag: str
    lanes: int
    authors: list[str]
    oid: list[str]
    title: list[str]
    rest: dict[int, str]
    ms: list[int]
    author: list[int]
    lane: list[int]
    to: list[list[int]]
    joins: list[list[int]]
    away: list[bool]
    labels: dict[int, list[CommitLabel]]

    def rows_json(self, start: int, stop: int) -> dict[str, Any]:
        """Return some rows as JSON data for the script."""
        cut = slice(start, stop)
        return {
            "tag": self.tag,
            "total": len(self.oid),
            "lanes": self.lanes,
            "authors": self.authors,
            "start": start,
            "oid": self.oid[cut],
            "title": self.title[cut],
            "ms": self.ms[cut],
            "author": self.author[cut],
            "lane": self.lane[cut],
            "to": [one[0] if len(one) == 1 else one for one in self.to[cut]],
            "joins": {n: lanes for n, lanes in enumerate(self.joins[cut], start) if lanes},
            "away": [n for n, away in enumerate(self.away[cut], start) if away],
            "rest": {n: one for n, one in self.rest.items() if start <= n < stop},
            "labels": {n: one for n, one in self.labels.items() if start <= n < stop},
        }


class SessionFamily(NamedTuple):
    """A session and the sessions that share its history, if the caller may see them."""

    row: SessionRow
    rows: list[SessionRow]
    swarms: list[Swarm]
    live: list[str]  # ids of sessions whose machine runs here

    @classmethod
    def load(cls, hub: Hub, pool: SessionPool, caller: Caller, row: SessionRow) -> SessionFamily:
        """Load the visible sessions of the family, with their swarms."""
        rows = [one for one in visible_sessions(hub, caller) if one.family == row.family]
        swarms = [swarm for one in rows for swarm in swarms_of(hub, one)]
        return cls(row, rows, swarms, [one.id for one in rows if pool.has_live_machine(one.id)])


class TimelineGraphCache:
    """The graphs of one server."""

    def __init__(self) -> None:
        self._nodes_by_tenant: dict[str, dict[Oid, CommitNode]] = {}
        self._past_heads_cache: dict[tuple[str, str], tuple[int, set[Oid]]] = {}
        self._graphs: OrderedDict[tuple[str, str, tuple[str, ...]], TimelineGraph] = OrderedDict()
        self._lock = Lock()

    def graph(self, hub: Hub, caller: Caller, family: SessionFamily) -> TimelineGraph:
        """Return the present graph."""
        tag = _tag(hub, family)
        key = caller.tenant, family.row.id, caller.agents
        with self._lock:
            known = self._graphs.get(key)
            if known is None or known.tag != tag:
                known = self._graphs[key] = self._build_graph(hub, caller, family, tag)
                while len(self._graphs) > _MAX_CACHED_GRAPHS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(key)
            return known

    def partial_graph(
        self, hub: Hub, caller: Caller, family: SessionFamily, count: int
    ) -> TimelineGraph | None:
        """Return a graph of the newest commits, without reading the others, for a fast first page.

        Returns None if the full graph is cached, or if commit times are not in order.
        """
        with self._lock:
            if (caller.tenant, family.row.id, caller.agents) in self._graphs:
                return None
            notes = self._node_cache(caller.tenant)
        heads = _heads(hub, family.rows)
        nodes = newest_commits(hub, notes, set(heads.values()), count)
        if nodes is None:
            return None
        order, graph = nodes
        return _lay_out_graph(
            PARTIAL_TAG,
            order,
            graph,
            reachable=set(order),
            trunk=heads.get(family.row.id),
            labels=_labels(hub, family, heads),
        )

    def _node_cache(self, tenant: str) -> dict[Oid, CommitNode]:
        notes = self._nodes_by_tenant.setdefault(tenant, {})
        if len(notes) > _MAX_CACHED_COMMITS:
            notes.clear()
        return notes

    def _build_graph(
        self, hub: Hub, caller: Caller, family: SessionFamily, tag: str
    ) -> TimelineGraph:
        notes = self._node_cache(caller.tenant)
        heads = _heads(hub, family.rows)
        tips = set(heads.values())
        for row in family.rows:
            tips |= self._past_heads(hub, caller.tenant, row.branch)
        if not caller.agents:  # else an attempt may belong to another agent
            tips |= {Oid(bytes.fromhex(one.commit)) for one in _attempts(family) if one.commit}
        graph = read_graph(hub, notes, tips)
        present = set(ancestors(graph, heads.values()))
        order = list(topological_order(graph))
        trunk = heads.get(family.row.id)
        return _lay_out_graph(
            tag, order, graph, reachable=present, trunk=trunk, labels=_labels(hub, family, heads)
        )

    def _past_heads(self, hub: Hub, tenant: str, branch: str) -> set[Oid]:
        """Return all commits where a branch has been, also those that a restore left."""
        after, past_heads = self._past_heads_cache.get((tenant, branch), (0, set()))
        while ops := hub.catalog.ops(f"branch:{branch}", after=after):
            past_heads |= {Oid(one) for op in ops for one in (op.old, op.new) if one is not None}
            after = ops[-1].seq
        self._past_heads_cache[tenant, branch] = after, past_heads
        return past_heads


def _tag(hub: Hub, family: SessionFamily) -> str:
    """Return a hash of everything that the graph depends on."""
    seen = [
        hub.catalog.last_op(),
        [(one.id, one.name, one.branch) for one in family.rows],
        [(one.name, [(a.state, a.score, a.commit) for a in one.attempts]) for one in family.swarms],
        family.live,
        family.row.id,
    ]
    return sha256(msgspec.json.encode(seen)).hexdigest()[:24]


def _heads(hub: Hub, rows: Iterable[SessionRow]) -> dict[str, Oid]:
    """Return the head of each session by its id."""
    rows_and_heads = ((row.id, hub.catalog.head(f"branch:{row.branch}")) for row in rows)
    return {id_: head.oid for id_, head in rows_and_heads if head is not None}


def _attempts(family: SessionFamily) -> Iterator[Any]:
    return (one for swarm in family.swarms for one in swarm.attempts)


def _labels(hub: Hub, family: SessionFamily, heads: dict[str, Oid]) -> dict[Oid, list[CommitLabel]]:
    labels: dict[Oid, list[CommitLabel]] = {}

    def put(oid: Oid, label: CommitLabel) -> None:
        labels.setdefault(oid, []).append(label)

    own = family.row.id
    tried = {(attempt.id, attempt.commit) for attempt in _attempts(family)}
    for row in sorted(family.rows, key=lambda row: row.id != own):
        if row.id in heads and (row.id, to_hex(heads[row.id])) not in tried:
            kind = "head" if row.id == own else "branch"
            put(heads[row.id], CommitLabel(kind, row.name, row.id))
            if row.id in family.live:
                put(heads[row.id], CommitLabel("live", "machine", row.id))
    for tag in hub.refs.tags():
        put(tag.oid, CommitLabel("tag", tag.name))
    for swarm in family.swarms:
        for attempt in swarm.attempts:
            if attempt.commit:
                score = "" if attempt.score is None else f": {attempt.score:g}"
                text = f"{swarm.name} #{attempt.i}{score}"
                kind = "kept" if attempt.kept else "attempt"
                put(Oid(bytes.fromhex(attempt.commit)), CommitLabel(kind, text, attempt.id))
    return labels


def _lay_out_graph(
    tag: str,
    order: list[Oid],
    graph: dict[Oid, CommitNode],
    *,
    reachable: set[Oid],
    trunk: Oid | None,
    labels: dict[Oid, list[CommitLabel]],
) -> TimelineGraph:
    authors: dict[str, int] = {}
    notes = [graph[oid] for oid in order]
    names = list(map(to_hex, order))
    lines = (
        (name, [to_hex(one) for one in note.parents if one in graph])
        for name, note in zip(names, notes, strict=True)
    )
    places = list(lay_out(lines, [to_hex(trunk)] if trunk is not None and trunk in graph else []))
    return TimelineGraph(
        tag=tag,
        lanes=max((max(one.lane, *one.to, 0) + 1 for one in places), default=1),
        author=[authors.setdefault(note.author, len(authors)) for note in notes],
        authors=list(authors),
        oid=names,
        title=[note.title for note in notes],
        rest={n: note.rest for n, note in enumerate(notes) if note.rest},
        ms=[note.ms for note in notes],
        lane=[one.lane for one in places],
        to=[one.to for one in places],
        joins=[one.joins for one in places],
        away=[oid not in reachable for oid in order],
        labels={n: labels[oid] for n, oid in enumerate(order) if oid in labels},
    )
