"""One thread of LangGraph as the journal of its session tells it: checkpoints, and writes that wait
in them. Every event adds to it, so it is never read again from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.constants import START

from ortet.integrations.langgraph.values.heap import Heap
from ortet.integrations.langgraph.values.message_refs import Held
from ortet.integrations.langgraph.values.parts import Tree
from ortet.journal.conversation.superseded import Span
from ortet.journal.events import Event

THREAD = "langgraph.thread"
PARTS = "langgraph.parts"
PUT = "langgraph.put"
WRITES = "langgraph.writes"
DROP = "langgraph.drop"
_DELTAS = "counters_since_delta_snapshot"
SENDS = 4
"""The version of checkpoints from which on what was sent to nodes lies in a channel."""

Spot = tuple[str, str]
"""Namespace and id of a checkpoint."""


class HeadId(str):
    """The id of a checkpoint that was given as the latest: who goes on from it is stale when it is
    no more. Config carries it from `get_tuple` to `put` as it is."""

    __slots__ = ()


class PastId(str):
    """The id of a checkpoint that was asked for by it: who goes on from it wants to branch off."""

    __slots__ = ()


class Saved:
    """A checkpoint. `rest` is all of it but the values of its channels, which are `values`. It goes
    on from the one `before`, unless its data says from which."""

    __slots__ = (
        *("at", "commit", "first", "follows", "hidden", "id"),
        *("meta", "ns", "parent", "rest", "values"),
    )

    def __init__(self, data: dict[str, Any], at: int, before: str | None) -> None:
        self.ns: str = data["ns"]
        self.id: str = data["id"]
        self.parent: str | None = data.get("parent", before)
        self.rest: dict[str, Tree] = data["rest"]
        self.meta: Tree = data["meta"]
        self.values: dict[str, Tree] = data["values"]
        self.commit: str = data.get("commit", "")
        self.at = self.first = at  # the event that put it, and the one that did so first
        self.follows = 0  # the event that put the one before, if that is not its parent
        self.hidden = False


class Write:
    __slots__ = ("at", "channel", "index", "path", "task", "tree")

    def __init__(self, data: dict[str, Any], index: int, channel: str, tree: Tree, at: int) -> None:
        self.task, self.path, self.index = data["task"], data["path"], index
        self.channel, self.tree, self.at = channel, tree, at


class Thread:
    """`key` says of which session and timeline it was read, `seq` up to which event."""

    def __init__(self, key: tuple[str, str], load: Callable[[str, int], bytes]) -> None:
        self.key = key
        self.seq = self.stored = self.noted = 0
        self.id: Any = None  # as its user gave it, or None before its first event
        self.fence = 0  # of the lease of its session that is ours since it was read
        self.travelled = ""  # the checkpoint whose files a run was given back
        self.heap = Heap(load)
        self.held = Held(self.heap)
        self.deltas = set[str]()  # channels of the graph itself that store what was written
        self._saved: dict[Spot, Saved] = {}
        self._order: dict[str, list[Saved]] = {}  # by namespace, as they were put
        self._writes: dict[Spot, dict[tuple[str, int], Write]] = {}
        self._parents: set[Spot] = set()
        self._children: dict[str | None, list[str]] = {}  # of the graph itself
        self._work: dict[str | None, list[Span]] = {}
        self._recorded = 0  # the last event of a checkpoint or of writes

    def apply(self, event: Event) -> None:
        self.seq = event.seq
        if event.erased:
            return
        if event.kind == "message":
            self.heap.add_message(event.data, event.seq)
        elif event.kind.startswith("langgraph."):
            self.take(event.kind, event.data, event.seq)

    def take(self, kind: str, data: dict[str, Any], seq: int) -> None:
        for number, tree in data.get("new", ()):
            self.heap.add_stored(number, tree, seq)
        self.tell(kind, data, seq)

    def tell(self, kind: str, data: dict[str, Any], seq: int) -> None:
        """The same, whose parts are there."""
        self.seq = max(self.seq, seq)
        if kind == PUT:
            head = self.head(data["ns"])
            self._put(Saved(data, seq, head.id if head is not None else None))
        elif kind == WRITES:
            known = self._writes.setdefault((data["ns"], data["id"]), {})
            for index, channel, tree in data["writes"]:
                write = Write(data, index, channel, tree, seq)
                known[write.task, index] = write
            self._add_work(data["ns"], data["id"], seq)
        elif kind == DROP:
            for ns, id_ in data["ids"]:
                if (found := self._saved.get((ns, id_))) is not None:
                    found.hidden = True
        elif kind == THREAD:
            self.id = data["id"]

    def _put(self, saved: Saved) -> None:
        spot = saved.ns, saved.id
        before = self._saved.get(spot)
        self._saved[spot] = saved
        order = self._order.setdefault(saved.ns, [])
        if before is not None:
            saved.first, saved.follows = before.first, before.follows
            order[order.index(before)] = saved
        else:
            if order and order[-1].id != saved.parent:
                saved.follows = order[-1].first
            order.append(saved)
        if saved.parent:
            self._parents.add((saved.ns, saved.parent))
        if not saved.ns:
            self.deltas |= self.heap.entries(self.heap.entries(saved.meta).get(_DELTAS)).keys()
        if before is None and not saved.ns:
            self._children.setdefault(saved.parent, []).append(saved.id)
        if saved.ns or START in saved.values:
            self._add_work(saved.ns, saved.id, saved.at)
        self._recorded = saved.at

    def _add_work(self, ns: str, id_: str, seq: int) -> None:
        """What was said with it is on its way to the next checkpoint of the graph itself."""
        around = self._around(ns, id_) if ns else id_
        self._work.setdefault(around, []).append((self._recorded + 1, seq))
        self._recorded = seq

    def _around(self, ns: str, id_: str) -> str | None:
        """The checkpoint of the graph itself that one of a graph inside of it goes on from: in the
        background that one may be put later."""
        saved, head = self._saved.get((ns, id_)), self.head("")
        parents = self.heap.entries(self.heap.entries(saved.meta if saved else None).get("parents"))
        found = parents.get("")
        return found if type(found) is str else head.id if head is not None else None

    # reading

    def work(self, id_: str | None) -> Sequence[Span]:
        """What was said on the way from a checkpoint to others: events in which it was asked,
        written by tasks, or done by graphs inside."""
        return self._work.get(id_, ())

    def children(self, id_: str | None) -> list[Saved]:
        """Checkpoints of the graph itself that go on from one, as they were put."""
        return [self._saved["", one] for one in self._children.get(id_, ())]

    def namespaces(self) -> list[str]:
        return list(self._order)

    def saved(self, ns: str, id_: str | None) -> Saved | None:
        """As it was put, though it may be dropped."""
        return self._saved.get((ns, id_)) if id_ else None

    def head(self, ns: str) -> Saved | None:
        """What was put last: ids of a host whose clock is late would not tell."""
        return next((one for one in reversed(self._order.get(ns, ())) if not one.hidden), None)

    def asked(self, ns: str, id_: str | None) -> Saved | None:
        """The one of this id, or the latest; None where it is not there, or was dropped."""
        found = self.saved(ns, id_) if id_ else self.head(ns)
        return None if found is None or found.hidden else found

    def newest_first(self, ns: str) -> list[Saved]:
        return [one for one in reversed(self._order.get(ns, ())) if not one.hidden]

    def everything(self) -> list[Saved]:
        """Over all namespaces, in order of ids."""
        found = [one for order in self._order.values() for one in order if not one.hidden]
        return sorted(found, key=lambda one: one.id, reverse=True)

    def has_child(self, ns: str, id_: str) -> bool:
        return (ns, id_) in self._parents

    def writes(self, ns: str, id_: str) -> list[Write]:
        found = self._writes.get((ns, id_), {}).values()
        return sorted(found, key=lambda one: writes_sort_key(one.path, one.task, one.index))

    def missing(
        self, spot: Spot, task: str, writes: Sequence[tuple[str, Any]]
    ) -> Iterable[tuple[int, str, Any]]:
        """Those of a task that are not there yet. Of a checkpoint that was gone on from, a task
        that has written has done so: what a second one of it writes came too late."""
        known = self._writes.get(spot, {})
        over = self.has_child(*spot) and any(key[0] == task and key[1] >= 0 for key in known)
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            if index < 0 or not (over or (task, index) in known):
                yield index, channel, value
