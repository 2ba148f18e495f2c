"""The commit graph of a family of sessions, and its cache.

A commit never changes, so it is read once. The graph is built again when a head has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from ortet.hub.hub import Hub
from ortet.ids import Oid, to_hex
from ortet.server.auth.tokens import Caller
from ortet.server.schemas import visible_sessions
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.table import SessionRow
from ortet.web.views.lanes import lay_out
from ortet.web.views.notes import (
    CommitNode,
    ancestors,
    newest_commits,
    read_graph,
    topological_order,
)
from ortet.web.views.swarms import Swarm, swarms_of

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
        found = newest_commits(hub, notes, set(heads.values()), count)
        if found is None:
            return None
        order, graph = found
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
        after, found = self._past_heads_cache.get((tenant, branch), (0, set()))
        while ops := hub.catalog.ops(f"branch:{branch}", after=after):
            found |= {Oid(one) for op in ops for one in (op.old, op.new) if one is not None}
            after = ops[-1].seq
        self._past_heads_cache[tenant, branch] = after, found
        return found


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
    found = ((row.id, hub.catalog.head(f"branch:{row.branch}")) for row in rows)
    return {id_: head.oid for id_, head in found if head is not None}


def _attempts(family: SessionFamily) -> Iterator[Any]:
    return (one for swarm in family.swarms for one in swarm.attempts)


def _labels(hub: Hub, family: SessionFamily, heads: dict[str, Oid]) -> dict[Oid, list[CommitLabel]]:
    found: dict[Oid, list[CommitLabel]] = {}

    def put(oid: Oid, label: CommitLabel) -> None:
        found.setdefault(oid, []).append(label)

    own = family.row.id
    tried = {(one.id, one.commit) for one in _attempts(family)}
    for row in sorted(family.rows, key=lambda one: one.id != own):
        if row.id in heads and (row.id, to_hex(heads[row.id])) not in tried:
            kind = "head" if row.id == own else "branch"
            put(heads[row.id], CommitLabel(kind, row.name, row.id))
            if row.id in family.live:
                put(heads[row.id], CommitLabel("live", "machine", row.id))
    for tag in hub.refs.tags():
        put(tag.oid, CommitLabel("tag", tag.name))
    for swarm in family.swarms:
        for one in swarm.attempts:
            if one.commit:
                text = f"{swarm.name} #{one.i}" + ("" if one.score is None else f": {one.score:g}")
                kind = "kept" if one.kept else "attempt"
                put(Oid(bytes.fromhex(one.commit)), CommitLabel(kind, text, one.id))
    return found


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
