"""An index row that names the events which the latest checkpoint of a thread consists of.

The row allows a reader to load the latest checkpoint without reading the whole journal. It has
event numbers only, no content. It is written from time to time, in one transaction with the events
it follows. If the row is damaged or does not match, the whole journal is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from ortet._util.codec import StoredRecord, checksum, decode, encode
from ortet.backends.base import RowChange
from ortet.errors import Corrupt
from ortet.integrations.langgraph.thread import DROP, PUT, SENDS, WRITES, GraphThread
from ortet.integrations.langgraph.values.parts import PartNotLoaded, PartStore, Tree
from ortet.journal.event_log import EventLog
from ortet.journal.events import Tip
from ortet.sessions.environment.removal_rows import DERIVED

_VERSION = 1
_CHECKSUM_BYTES = 8
_MIN_INTERVAL_EVENTS = 64
_INTERVAL_DIVISOR = 64
"""Fraction of all events after which the index row is written again.

The row is written after `_MIN_INTERVAL_EVENTS` or this fraction, whichever is more. So the cost for
each event does not grow with the thread.
"""


class HeadIndexRow(StoredRecord, frozen=True):
    """The index of a thread as of event `seq` of a timeline.

    The event `put` has the latest checkpoint, whose parent is `parent`. `writes` are the events of
    its pending writes. `parts` are the events with its parts. `lost` are the numbers of erased
    parts.
    """

    version: int
    timeline: str
    seq: int
    hash: bytes
    put: int
    parent: str | None
    writes: list[int]
    parts: list[int]
    lost: list[int]


def head_index_rows(session: str, thread: GraphThread, tip: Tip) -> list[RowChange]:
    """Return the index row to write with the events after `tip`, or nothing if it is not due."""
    seq, head = thread.seq, thread.head("")
    if (
        seq != tip.seq
        or seq - thread.indexed_seq < max(_MIN_INTERVAL_EVENTS, seq // _INTERVAL_DIVISOR)
        or head is None
    ):
        return []
    if head.rest.get("v", SENDS) < SENDS:  # Old versions need values of the parent checkpoint.
        return []
    writes = thread.writes("", head.id)
    trees = [*head.rest.values(), head.meta, *head.values.values(), *(w.tree for w in writes)]
    try:
        parts, lost = _referenced_events(thread.part_store, trees)
    except Exception:  # Another program wrote invalid records. They must not prevent this write.
        return []
    needed = HeadIndexRow(
        version=_VERSION,
        timeline=thread.key[1],
        seq=seq,
        hash=tip.hash,
        put=head.seq,
        parent=head.parent,
        writes=sorted({write.seq for write in writes}),
        parts=sorted(parts),
        lost=sorted(lost),
    )
    thread.indexed_seq = seq
    raw = encode(needed)
    return [RowChange(DERIVED, session, checksum(raw) + raw)]


def _referenced_events(heap: PartStore, trees: Iterable[Tree]) -> tuple[set[int], set[int]]:
    """Return the events of all referenced parts, and the numbers of the missing ones."""
    queue, seen, most = list(trees), set[int](), 2 * len(heap)
    events, lost = set[int](), set[int]()
    while queue:
        tree = queue.pop()
        if type(tree) is list:
            queue += tree
        elif type(tree) is dict:
            for number in _numbers(tree, queue, most):
                if number in seen:
                    continue
                seen.add(number)
                if (part := heap.part(number)) is None:
                    lost.add(number)
                    continue
                events.add(part.seq)
                if not part.is_message:
                    queue.append(part.tree)
                elif part.stored is not part.tree:
                    queue.append({"$m": part.stored["$i"][0]})
    return events, lost


def _numbers(tree: dict[str, Tree], queue: list[Tree], max_range: int) -> Iterable[int]:
    """Return the part numbers in a dict; subtrees that may have more are added to `queue`."""
    (first, *others) = tree or [""]
    if others or not first.startswith("$"):
        queue += tree.values()
    elif first == "$m":
        return [tree[first]]
    elif first == "$l":
        rows: list[Sequence[int]] = [one if len(one) == 1 else range(*one) for one in tree[first]]
        if any(len(row) > max_range for row in rows):
            raise PartNotLoaded
        return chain.from_iterable(rows)
    elif first == "$s":
        queue.append(tree[first])
    elif first == "$d":
        queue += [one for _, one in tree[first]]
    return ()


def load_head_thread(
    row: bytes, log: EventLog, key: tuple[str, str], load: Callable[[str, int], bytes]
) -> GraphThread | None:
    """Load a thread that knows only its latest checkpoint, from the index row.

    The thread raises PartNotLoaded if it is asked for more. Return None if the row cannot be used.
    """
    try:
        needed = decode(HeadIndexRow, row[_CHECKSUM_BYTES:])
    except Corrupt:
        return None
    if checksum(row[_CHECKSUM_BYTES:]) != row[:_CHECKSUM_BYTES] or needed.version != _VERSION:
        return None
    if needed.timeline != key[1]:
        return None
    wanted = {needed.put, *needed.writes, *needed.parts}
    events = log.events_by_seq(sorted({*wanted, needed.seq}))
    if not events or events[-1].seq != needed.seq or events[-1].hash != needed.hash:
        return None
    thread = GraphThread(key, load)
    thread.part_store.erased_numbers = set(needed.lost)
    for event in events:
        if event.seq not in wanted:
            continue
        if event.erased:
            return None
        if event.kind == "message":
            thread.part_store.add_message(event.data, event.seq)
            continue
        for number, tree in event.data.get("new", ()):
            thread.part_store.add_stored(number, tree, event.seq)
        if event.seq == needed.put:
            thread.apply_record(PUT, {**event.data, "parent": needed.parent}, event.seq)
        elif event.kind == WRITES:
            thread.apply_record(WRITES, event.data, event.seq)
    thread.seq = needed.seq
    return thread


def try_catch_up(thread: GraphThread, log: EventLog) -> bool:
    """Apply the events since the index row.

    False if they concern checkpoints that are not loaded.
    """
    for event in log.events(thread.seq):
        if event.kind == PUT and event.data.get("again"):
            return False
        thread.apply(event)
        if event.kind == DROP and thread.head("") is None:
            return False
    return True
