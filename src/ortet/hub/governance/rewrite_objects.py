"""Build objects without erased events: bodies, segments and folds that replace the old ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import EventRow
from ortet.history.records import (
    Bodies,
    Commit,
    EventHeader,
    JournalHead,
    JournalSegment,
    Memory,
    State,
)
from ortet.history.refs import load_reflog_expiry
from ortet.hub.governance.tombstones import ErasedEvent, Tombstone
from ortet.hub.sweep import gc_roots
from ortet.ids import Oid
from ortet.journal.events import EventBody
from ortet.journal.kinds.registry import fold
from ortet.journal.segments import iter_segments, unseal
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext


def reachable_journals(sessions: SessionManager) -> list[JournalHead]:
    """Return the journal heads of all reachable commits and sessions, shortest first."""
    store = sessions.store
    found: dict[bytes, JournalHead] = {}
    for state in _reachable_states(sessions):
        for journal in (state.journal, *(oid for _, oid in scope_journals(store, state.memory))):
            if journal and journal not in found:
                found[journal] = decode(JournalHead, store.objects.get(Oid(journal)))
    return sorted(found.values(), key=lambda one: (one.seq, one.segment))


def _reachable_states(sessions: SessionManager) -> Iterator[State]:
    """Yield the states of all reachable commits, and of journals that no commit holds yet."""
    seen: set[bytes] = set()
    todo: list[bytes] = []
    store = sessions.store
    for link in gc_roots(sessions, load_reflog_expiry(store.catalog)):
        if link.kind is Kind.COMMIT:
            todo.append(link.oid)
        elif link.kind is Kind.JOURNAL:
            yield State(journal=link.oid)
        elif link.kind is Kind.MEMORY:
            yield State(memory=link.oid)
    while todo:
        oid = todo.pop()
        if oid in seen:
            continue
        seen.add(oid)
        commit = decode(Commit, store.objects.get(Oid(oid)))
        todo += commit.parents
        yield decode(State, store.objects.get(commit.state))


def scope_journals(store: StoreContext, memory: bytes) -> list[tuple[str, bytes]]:
    """Return (scope name, journal oid) for the shared memories in a memory record."""
    return decode(Memory, store.objects.get(Oid(memory))).scopes if memory else []


def shared_segments(sessions: SessionManager) -> Iterator[tuple[str, JournalSegment]]:
    """Yield (scope name, segment) of all shared memories in commits, each segment once.

    Events of another store's shared memory exist only there.
    """
    store = sessions.store
    memories = {state.memory for state in _reachable_states(sessions)}
    held = {pair for memory in memories for pair in scope_journals(store, memory)}
    seen: set[bytes] = set()
    for name, oid in sorted(held):
        journal = decode(JournalHead, store.objects.get(Oid(oid)))
        for at, segment in iter_segments(store.objects, journal.segment):
            if at in seen:
                break
            seen.add(at)
            yield name, segment


def sealed_rows(
    sessions: SessionManager, timelines: Collection[str]
) -> Iterator[tuple[str, EventRow]]:
    """Yield (timeline, row) of these timelines from all reachable commits."""
    store = sessions.store
    seen: set[bytes] = set()
    for journal in reachable_journals(sessions) if timelines else ():
        for oid, segment in iter_segments(store.objects, journal.segment):
            if oid in seen:
                break
            seen.add(oid)
            if segment.timeline.hex() in timelines:
                yield from ((segment.timeline.hex(), row) for row in unseal(store.objects, segment))


def replace_objects(
    sessions: SessionManager, events: Sequence[ErasedEvent], by: str
) -> list[Tombstone]:
    """Write replacements for all objects that contain one of these events.

    The new objects are durable on return. The caller writes the tombstones, and blocks writers and
    sweeps until then.

    Returns:
        Unsigned tombstones, one for each replaced object.
    """
    store = sessions.store
    meant: dict[str, set[int]] = {}
    for event in events:
        meant.setdefault(event.timeline, set()).add(event.seq)
    work = _ObjectRewriter(sessions, meant, by)
    all_ = reachable_journals(sessions)
    for journal in all_:
        for oid, segment in work.new_segments(journal):
            work.rewrite_segment(oid, segment)
    for journal in all_:
        work.rewrite_fold(journal)
    failpoint("erase.objects")
    store.objects.flush()
    return work.tombstones


class _ObjectRewriter:
    def __init__(
        self, sessions: SessionManager, erased_seqs: Mapping[str, set[int]], by: str
    ) -> None:
        self.tombstones: list[Tombstone] = []
        self._sessions = sessions
        self._objects = sessions.store.objects
        self._erased_seqs = erased_seqs
        self._by = by
        self._visited_segments: set[bytes] = set()
        self._affected_segments: set[bytes] = (
            set()
        )  # segments with an erased event, and all after them
        self._folds: dict[bytes, bytes] = {}  # segment -> fold of all events up to it

    def new_segments(self, journal: JournalHead) -> Iterator[tuple[Oid, JournalSegment]]:
        """Return the segments of a journal that were not visited yet, oldest first."""
        found = []
        for oid, segment in iter_segments(self._objects, journal.segment):
            if oid in self._visited_segments:
                break
            self._visited_segments.add(oid)
            found.append((oid, segment))
        return iter(found[::-1])

    def rewrite_segment(self, oid: Oid, segment: JournalSegment) -> None:
        timeline = segment.timeline.hex()
        meant = self._erased_seqs.get(timeline, set())
        hit = [seq for seq in _seqs(segment) if seq in meant]
        if hit or segment.before in self._affected_segments:
            self._affected_segments.add(oid)
        if not hit:
            return
        rows = unseal(self._objects, segment)
        if any(row.seq in meant and row.salt for row in rows):
            items = [(b"", b"") if r.seq in meant else (r.salt, r.body) for r in rows]
            new = self._objects.put(Kind.BODIES, encode(Bodies(items)))
            self._add_tombstone(segment.bodies, new, Kind.BODIES, timeline, hit)
        refs = _refs(row.body for row in rows if row.seq not in meant)
        if refs != segment.refs:
            bare = encode(msgspec.structs.replace(segment, refs=refs))
            self._add_tombstone(
                oid, self._objects.put(Kind.SEGMENT, bare), Kind.SEGMENT, timeline, hit
            )

    def rewrite_fold(self, journal: JournalHead) -> None:
        """Compute the fold of the remaining events, starting at the nearest rewritten fold."""
        if journal.segment not in self._affected_segments:
            self._folds[journal.segment] = journal.fold
            return
        run: list[JournalSegment] = []
        start = b""
        for oid, segment in iter_segments(self._objects, journal.segment):
            if oid in self._folds:
                start = self._folds[oid]
                break
            run.append(segment)
        mind = SessionState.load(self._sessions.services.maps, self._objects, start)
        for segment in reversed(run):
            for row in unseal(self._objects, segment):
                timeline = segment.timeline.hex()
                if row.seq in self._erased_seqs.get(timeline, set()):
                    row = msgspec.structs.replace(row, salt=b"", body=b"")  # noqa: PLW2901
                fold(mind, [self._sessions.services.chain.read(row, timeline)])
        new = mind.save(self._objects)
        self._folds[journal.segment] = new
        if new != self._objects.replacement_of(Oid(journal.fold)):
            hit = sorted({seq for s in run for seq in _seqs(s)} & self._all_erased_seqs())
            self._add_tombstone(Oid(journal.fold), new, Kind.FOLD, "", hit)

    def _all_erased_seqs(self) -> set[int]:
        return {seq for seqs in self._erased_seqs.values() for seq in seqs}

    def _add_tombstone(
        self, old: Oid, new: Oid, kind: Kind, timeline: str, seqs: Sequence[int]
    ) -> None:
        """Add a tombstone for the object that now stands for `old`.

        That is `old` itself, or its replacement by an earlier erasure.
        """
        store = self._sessions.store
        self.tombstones.append(
            Tombstone(
                old=self._objects.replacement_of(old),
                new=new,
                kind=int(kind),
                timeline=timeline,
                seqs=list(seqs),
                time=store.clock.now_ns(),
                by=self._by,
            )
        )


def _seqs(segment: JournalSegment) -> list[int]:
    return [decode(EventHeader, head).seq for head in segment.heads]


def _refs(bodies: Iterable[bytes]) -> list[tuple[bytes, int]]:
    found: dict[tuple[bytes, int], None] = {}
    for body in bodies:
        if body:
            found.update(dict.fromkeys(decode(EventBody, body).refs))
    return list(found)
