"""One LangGraph thread, folded from the journal of its session: checkpoints and pending writes.

New events are applied to it, so the journal is read from the start only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.constants import START

from ortet.integrations.langgraph.values.message_refs import MessageRefs
from ortet.integrations.langgraph.values.parts import PartStore, Tree
from ortet.journal.conversation.superseded import SeqRange
from ortet.journal.events import Event

THREAD = "langgraph.thread"
PARTS = "langgraph.parts"
PUT = "langgraph.put"
WRITES = "langgraph.writes"
DROP = "langgraph.drop"
_DELTA_COUNTERS_KEY = "counters_since_delta_snapshot"
SENDS = 4
"""Checkpoint version from which on sends to nodes are stored in a channel."""

CheckpointKey = tuple[str, str]
"""Namespace and id of a checkpoint."""


class HeadId(str):
    """Id of a checkpoint that was returned as the latest.

    A `put` that continues from it is stale if it is no longer the latest. The config carries the id
    object from `get_tuple` to `put` and `put_writes` unchanged, so `written_tasks` are the tasks
    whose writes the run that got this id has stored.
    """

    written_tasks: set[str]

    def __new__(cls, text: str) -> Self:
        id_ = super().__new__(cls, text)
        id_.written_tasks = set()
        return id_


class PastId(str):
    """Id of a checkpoint that was requested by id; a `put` that continues from it branches off."""

    __slots__ = ()


class StoredCheckpoint:
    """A checkpoint as stored.

    `values` are the channel values and `rest` all other fields. The parent is `default_parent`
    unless the data names another.
    """

    __slots__ = (
        *("seq", "commit", "first_seq", "previous_seq", "is_dropped", "id"),
        *("meta", "ns", "parent", "rest", "values"),
    )

    def __init__(self, data: dict[str, Any], seq: int, default_parent: str | None) -> None:
        self.ns: str = data["ns"]
        self.id: str = data["id"]
        self.parent: str | None = data.get("parent", default_parent)
        self.rest: dict[str, Tree] = data["rest"]
        self.meta: Tree = data["meta"]
        self.values: dict[str, Tree] = data["values"]
        self.commit: str = data.get("commit", "")
        self.seq = self.first_seq = seq  # the events of its latest and of its first put
        self.previous_seq = 0  # event of the checkpoint put before it, if that is not its parent
        self.is_dropped = False


class ChannelWrite:
    __slots__ = ("channel", "index", "path", "seq", "task", "tree")

    def __init__(
        self, data: dict[str, Any], index: int, channel: str, tree: Tree, seq: int
    ) -> None:
        self.task, self.path, self.index = data["task"], data["path"], index
        self.channel, self.tree, self.seq = channel, tree, seq


class GraphThread:
    """Checkpoints and writes of one thread.

    `key` is the session and timeline it was read from. `seq` is the last applied event.
    """

    def __init__(self, key: tuple[str, str], load: Callable[[str, int], bytes]) -> None:
        self.key = key
        self.seq = self.durable_seq = self.indexed_seq = 0
        self.id: Any = None  # as the user gave it; None before the first event
        # fence of the session's lease, if this process held it at the last read; else 0
        self.fence = 0
        self.restored_checkpoint_id = ""  # checkpoint whose files were restored for a run
        self.part_store = PartStore(load)
        self.message_refs = MessageRefs(self.part_store)
        self.delta_channels = set[str]()  # channels of the root graph that store deltas
        self._checkpoints: dict[CheckpointKey, StoredCheckpoint] = {}
        self._by_namespace: dict[str, list[StoredCheckpoint]] = {}  # in the order of their puts
        self._writes: dict[CheckpointKey, dict[tuple[str, int], ChannelWrite]] = {}
        self._parents: set[CheckpointKey] = set()
        self._children: dict[str | None, list[str]] = {}  # of the root graph
        self._work: dict[str | None, list[SeqRange]] = {}
        self._last_recorded_seq = 0  # last event with a checkpoint or writes

    def apply(self, event: Event) -> None:
        self.seq = event.seq
        if event.erased:
            return
        if event.kind == "message":
            self.part_store.add_message(event.data, event.seq)
        elif event.kind.startswith("langgraph."):
            self.add_record(event.kind, event.data, event.seq)

    def add_record(self, kind: str, data: dict[str, Any], seq: int) -> None:
        for number, tree in data.get("new", ()):
            self.part_store.add_stored(number, tree, seq)
        self.apply_record(kind, data, seq)

    def apply_record(self, kind: str, data: dict[str, Any], seq: int) -> None:
        """Apply a record whose parts are already added."""
        self.seq = max(self.seq, seq)
        if kind == PUT:
            head = self.head(data["ns"])
            self._put(StoredCheckpoint(data, seq, head.id if head is not None else None))
        elif kind == WRITES:
            known = self._writes.setdefault((data["ns"], data["id"]), {})
            for index, channel, tree in data["writes"]:
                write = ChannelWrite(data, index, channel, tree, seq)
                known[write.task, index] = write
            self._add_work(data["ns"], data["id"], seq)
        elif kind == DROP:
            for ns, id_ in data["ids"]:
                if (checkpoint := self._checkpoints.get((ns, id_))) is not None:
                    checkpoint.is_dropped = True
        elif kind == THREAD:
            self.id = data["id"]

    def _put(self, checkpoint: StoredCheckpoint) -> None:
        spot = checkpoint.ns, checkpoint.id
        before = self._checkpoints.get(spot)
        self._checkpoints[spot] = checkpoint
        order = self._by_namespace.setdefault(checkpoint.ns, [])
        if before is not None:
            checkpoint.first_seq, checkpoint.previous_seq = before.first_seq, before.previous_seq
            order[order.index(before)] = checkpoint
        else:
            if order and order[-1].id != checkpoint.parent:
                checkpoint.previous_seq = order[-1].first_seq
            order.append(checkpoint)
        if checkpoint.parent:
            self._parents.add((checkpoint.ns, checkpoint.parent))
        if not checkpoint.ns:
            self.delta_channels |= self.part_store.entries(
                self.part_store.entries(checkpoint.meta).get(_DELTA_COUNTERS_KEY)
            ).keys()
        if before is None and not checkpoint.ns:
            self._children.setdefault(checkpoint.parent, []).append(checkpoint.id)
        if checkpoint.ns or START in checkpoint.values:
            self._add_work(checkpoint.ns, checkpoint.id, checkpoint.seq)
        self._last_recorded_seq = checkpoint.seq

    def _add_work(self, ns: str, id_: str, seq: int) -> None:
        """Assign the new events to the path to the next checkpoint of the root graph."""
        around = self._outer_checkpoint_id(ns, id_) if ns else id_
        self._work.setdefault(around, []).append((self._last_recorded_seq + 1, seq))
        self._last_recorded_seq = seq

    def _outer_checkpoint_id(self, ns: str, id_: str) -> str | None:
        """Return the root checkpoint that a subgraph's checkpoint continues from.

        In the background that root checkpoint may be stored later.
        """
        saved, head = self._checkpoints.get((ns, id_)), self.head("")
        parents = self.part_store.entries(
            self.part_store.entries(saved.meta if saved else None).get("parents")
        )
        outer_id = parents.get("")
        return outer_id if type(outer_id) is str else head.id if head is not None else None

    # Reading.

    def work(self, id_: str | None) -> Sequence[SeqRange]:
        """Return the events between a checkpoint and its children.

        They have input, task writes and work of subgraphs.
        """
        return self._work.get(id_, ())

    def children(self, id_: str | None) -> list[StoredCheckpoint]:
        """Return the children of a checkpoint of the root graph, in the order of their puts."""
        return [self._checkpoints["", one] for one in self._children.get(id_, ())]

    def namespaces(self) -> list[str]:
        return list(self._by_namespace)

    def get_checkpoint(self, ns: str, id_: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint, even if it was dropped."""
        return self._checkpoints.get((ns, id_)) if id_ else None

    def head(self, ns: str) -> StoredCheckpoint | None:
        """Return the checkpoint that was put last.

        The ids do not show this, because they depend on the clock of a host.
        """
        return next(
            (one for one in reversed(self._by_namespace.get(ns, ())) if not one.is_dropped), None
        )

    def find_checkpoint(self, ns: str, id_: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint of this id, or the latest.

        None if it does not exist or was dropped.
        """
        checkpoint = self.get_checkpoint(ns, id_) if id_ else self.head(ns)
        return None if checkpoint is None or checkpoint.is_dropped else checkpoint

    def newest_first(self, ns: str) -> list[StoredCheckpoint]:
        return [one for one in reversed(self._by_namespace.get(ns, ())) if not one.is_dropped]

    def all_checkpoints(self) -> list[StoredCheckpoint]:
        """Return the checkpoints of all namespaces, sorted by id, newest first."""
        checkpoints = [
            one for order in self._by_namespace.values() for one in order if not one.is_dropped
        ]
        return sorted(checkpoints, key=lambda one: one.id, reverse=True)

    def has_child(self, ns: str, id_: str) -> bool:
        return (ns, id_) in self._parents

    def writes(self, ns: str, id_: str) -> list[ChannelWrite]:
        writes = self._writes.get((ns, id_), {}).values()
        return sorted(writes, key=lambda one: writes_sort_key(one.path, one.task, one.index))

    def missing(
        self,
        checkpoint_key: CheckpointKey,
        task: str,
        writes: Sequence[tuple[str, Any]],
        *,
        is_rerun: bool,
    ) -> Iterable[tuple[int, str, Any]]:
        """Yield the writes of a task that are not stored yet.

        The first write counts at each position, as in other savers. A task may write more than
        before, for example when an addressed resume runs it again. `is_rerun` is False for a run
        that expects to be the first to write. If another run has written for this task and has
        continued from the checkpoint, those writes are late and are ignored: they would change
        delta channels of checkpoints that exist.
        """
        known = self._writes.get(checkpoint_key, {})
        is_late = (
            not is_rerun
            and self.has_child(*checkpoint_key)
            and any(key[0] == task and key[1] >= 0 for key in known)
        )
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            if index < 0 or not (is_late or (task, index) in known):
                yield index, channel, value
