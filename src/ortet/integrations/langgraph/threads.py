"""The threads of a store, each read up to its last event, and the files of their checkpoints."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import Any

from ortet._util.fork_safety import reset_in_child
from ortet.errors import Refused
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.session_pool import AdapterSessionPool, session_name
from ortet.integrations.langgraph.head_index import load_head_thread, try_catch_up
from ortet.integrations.langgraph.pending_writes import (
    CHECKPOINT_WAIT_SECONDS,
    PendingWriteQueue,
    notify_added,
)
from ortet.integrations.langgraph.thread import THREAD, CheckpointKey, GraphThread, StoredCheckpoint
from ortet.integrations.langgraph.values.encode import ValueEncoder
from ortet.integrations.langgraph.write import ThreadRecord, append
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event
from ortet.sessions.actions.artifacts import StoredContent, load
from ortet.sessions.environment.removal_rows import DERIVED
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow

WorkspaceOption = str | os.PathLike[str] | Callable[[str], str | os.PathLike[str]]
_SessionJournal = tuple[SessionRow, EventLog, int | None]
_MAX_CACHED_THREADS = 64
_MAX_REFUSED_CHECKPOINTS = 10_000
_IDLE_TIMEOUT_SECONDS = 600.0
"""Seconds that a session stays open between turns; opening it again reads its whole journal."""
_THREAD_EVENT_WINDOW = 8
"""Number of first events that are searched for the thread id."""


class GraphThreadStore:
    """Threads by id, as text. One thread of this process at a time is inside a block."""

    def __init__(self, hub: Hub, agent: str, workspace: WorkspaceOption | None) -> None:
        self.pool = AdapterSessionPool(hub, agent=agent, idle_timeout=_IDLE_TIMEOUT_SECONDS)
        self.workspace = workspace
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        """Clear all caches.

        This also runs in a forked child, which must not write what is pending in its parent.
        """
        self._threads: OrderedDict[str, GraphThread] = OrderedDict()
        self._head_threads: OrderedDict[str, GraphThread] = (
            OrderedDict()
        )  # threads loaded only up to their latest checkpoint
        self._epoch = -1  # the sweep epoch at which they were read
        self._stored_changed = Condition()
        self._refused: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self.pending_writes = PendingWriteQueue(self.is_known, self._is_stored_or_refused)

    @contextmanager
    def reading(self, tid: str) -> Iterator[GraphThread | None]:
        """Yield the thread, or None if there is no such session."""
        with self.pool.hub() as hub:
            journal, fence = self._journal(hub, tid)
            yield None if journal is None else self._catch_up(tid, *journal, fence=fence)

    def is_known(self, tid: str) -> bool:
        """Return True if this process has read the thread, so that a look needs no disk access."""
        return tid in self._threads

    def read(self, tid: str) -> None:
        """Read the thread, if it exists, so that it is known."""
        with self.reading(tid):
            pass

    @contextmanager
    def reading_head(self, tid: str) -> Iterator[GraphThread | None]:
        """Yield the thread for a caller that needs only its latest checkpoint.

        The thread may not be complete and then raises PartNotLoaded. None means: use `reading`.
        """
        with self.pool.hub() as hub:
            journal, fence = self._journal(hub, tid)
            if journal is None:
                yield None
            elif tid in self._threads:
                yield self._catch_up(tid, *journal, fence=fence)
            else:
                yield self._load_head(hub, tid, journal)

    def _journal(self, hub: Hub, tid: str) -> tuple[_SessionJournal | None, int]:
        """Return the journal of a thread, and the fence of our lease or 0."""
        held = self.pool.find_open(session_name(tid))
        if held is None:
            self._forget_erased(hub, tid, 0)
            return self.pool.journal(session_name(tid)), 0
        fence = held.internals.held_lease.lease.fence
        self._forget_erased(hub, tid, fence)
        return (
            held.internals.row,
            held.internals.event_log,
            held.internals.pipeline.writer.tip.seq,
        ), fence

    def _load_head(self, hub: Hub, tid: str, journal: _SessionJournal) -> GraphThread | None:
        row, line, last = journal
        thread, key = self._head_threads.pop(tid, None), (row.id, row.timeline)
        if thread is None or thread.key != key or (last is not None and last < thread.seq):
            noted = hub.catalog.row(DERIVED, row.id)
            thread = None if noted is None else load_head_thread(noted.value, line, key, self._load)
        if thread is None or not try_catch_up(thread, line):
            return None
        self._head_threads[tid] = thread
        if len(self._head_threads) > _MAX_CACHED_THREADS:
            self._head_threads.popitem(last=False)
        return thread

    @contextmanager
    def writing(self, tid: str) -> Iterator[tuple[Session, GraphThread]]:
        # `write` and `flush` make events durable.
        options: dict[str, Any] = {"durability": "commit"}
        if self.workspace is not None:
            where = self.workspace
            options["workspace"] = where(tid) if callable(where) else where
        with self.pool.writing(session_name(tid), **options) as session:
            fence, last = (
                session.internals.held_lease.lease.fence,
                session.internals.pipeline.writer.tip.seq,
            )
            self._forget_erased(hub_of(session), tid, fence)
            thread = self._catch_up(
                tid, session.internals.row, session.internals.event_log, last, fence=fence
            )
            if thread.seq < last:  # Events of a checkpoint that failed are not flushed yet.
                session.internals.pipeline.writer.flush()
                thread = self._catch_up(
                    tid, session.internals.row, session.internals.event_log, last, fence=fence
                )
            try:
                yield session, thread
            except BaseException:
                self.forget(tid)  # The cached thread may contain what was not written.
                raise

    def write(
        self,
        session: Session,
        thread: GraphThread,
        encoder: ValueEncoder,
        record: ThreadRecord,
        thread_id: Any,
    ) -> None:
        """Write a record together with all pending ones, durable on return."""
        event = append(session, thread, encoder, record=record, thread_id=thread_id, durable=True)
        self._mark_stored(thread, event.seq)

    def add(
        self,
        session: Session,
        thread: GraphThread,
        encoder: ValueEncoder,
        record: ThreadRecord,
        thread_id: Any,
    ) -> Callable[[], None]:
        """Append a record that is flushed with the next one.

        Returns:
            A function that makes the record durable. Call it outside the block.
        """
        event = append(session, thread, encoder, record=record, thread_id=thread_id, durable=False)
        return lambda: self._ensure_stored(session, thread, event)

    def flush(self, session: Session, thread: GraphThread) -> None:
        """Make all added records durable."""
        session.internals.pipeline.writer.flush()
        self._mark_stored(thread, thread.seq)

    @contextmanager
    def with_pending_writes(
        self, tid: str, session: Session, thread: GraphThread
    ) -> Iterator[None]:
        """Add the pending writes of tasks to the write in this block."""
        taken, is_stored = self.pending_writes.add_all(tid, session, thread), False
        try:
            yield
            is_stored = True
        finally:
            notify_added(taken, is_stored=is_stored)

    def wait_for(self, tid: str, checkpoint_key: CheckpointKey) -> None:
        """Wait until a checkpoint is stored or refused, with a timeout.

        Background threads may deliver task writes before their checkpoint. The messages of the
        checkpoint must come first in the journal.
        """
        if self._is_stored_or_refused(tid, checkpoint_key):
            return
        with self.reading(tid) as thread:
            if thread is not None and thread.get_checkpoint(*checkpoint_key) is not None:
                return
        with self._stored_changed:
            self._stored_changed.wait_for(
                lambda: self._is_stored_or_refused(tid, checkpoint_key), CHECKPOINT_WAIT_SECONDS
            )

    def _is_stored_or_refused(self, tid: str, checkpoint_key: CheckpointKey) -> bool:
        thread = self._threads.get(tid)
        here = thread is not None and thread.get_checkpoint(*checkpoint_key) is not None
        return here or self.is_refused(tid, checkpoint_key)

    def refuse(self, tid: str, checkpoint_key: CheckpointKey) -> None:
        """Record that a checkpoint was refused, so that what follows it is refused too."""
        with self._stored_changed:
            self._refused[tid, *checkpoint_key] = None
            if len(self._refused) > _MAX_REFUSED_CHECKPOINTS:
                self._refused.popitem(last=False)
            self._stored_changed.notify_all()

    def is_refused(self, tid: str, checkpoint_key: CheckpointKey) -> bool:
        return (tid, *checkpoint_key) in self._refused

    def _mark_stored(self, thread: GraphThread, seq: int) -> None:
        with self._stored_changed:
            thread.durable_seq = max(thread.durable_seq, seq)
            self._stored_changed.notify_all()

    def _ensure_stored(self, session: Session, thread: GraphThread, event: Event) -> None:
        with self.pool.hub():
            if thread.durable_seq >= event.seq:
                return
            if not session.internals.held_lease.is_released:
                try:
                    session.internals.pipeline.writer.flush()
                except BaseException:
                    # The cached thread is ahead of the store: drop it, so that it is read again.
                    self._threads = OrderedDict(
                        (k, t) for k, t in self._threads.items() if t != thread
                    )
                    self.pool.evict(session.name)
                    raise
            elif not _is_stored(session, event):
                raise Refused(
                    "lease_lost",
                    "another process has taken over this thread: nothing was written; run again",
                )
            self._mark_stored(thread, event.seq)

    def _forget_erased(self, hub: Hub, tid: str, fence: int) -> None:
        """Drop the cached threads if something was erased since they were read.

        Nobody can erase events of a session while we hold its lease. So a thread that was read
        under the present lease needs no check.
        """
        known = self._threads.get(tid)
        if fence and known is not None and known.fence == fence:
            return
        epoch = hub.objects.sweep_lock.fetch_epoch()  # This does not depend on any clock.
        if epoch != self._epoch:
            self._epoch = epoch
            self._threads.clear()
            self._head_threads.clear()

    def forget(self, tid: str) -> None:
        with self.pool.hub():
            self._threads.pop(tid, None)
            self._head_threads.pop(tid, None)

    def ids(self) -> Sequence[Any]:
        """Return the ids, as given by the user, of all sessions that LangGraph wrote to."""
        thread_ids = []
        for name in self.pool.names():
            with self.pool.hub():
                journal = self.pool.journal(name)
                first = journal[1].events(0, _THREAD_EVENT_WINDOW) if journal is not None else ()
                thread_ids += [event.data["id"] for event in first if event.kind == THREAD]
        return thread_ids

    def _catch_up(
        self, tid: str, row: SessionRow, log: EventLog, last: int | None, *, fence: int
    ) -> GraphThread:
        thread, key = self._threads.get(tid), (row.id, row.timeline)
        lost = thread is not None and last is not None and last < thread.seq
        if thread is None or thread.key != key or lost:
            thread = self._threads[tid] = GraphThread(key, self._load)
            if len(self._threads) > _MAX_CACHED_THREADS:
                self._threads.popitem(last=False)
        self._threads.move_to_end(tid)
        if last is None or last > thread.seq:
            for event in log.events(thread.seq):
                thread.apply(event)
        if (other := self._head_threads.pop(tid, None)) is not None and other.key == key:
            thread.part_store.adopt_objects(other.part_store)
        thread.fence = fence
        return thread

    def _load(self, oid: str, size: int) -> bytes:
        with self.pool.hub() as hub:
            return load(hub.objects, StoredContent(oid, size))

    # Files.

    def restore_files(self, tid: str, checkpoint: StoredCheckpoint) -> None:
        """Restore the files of an older checkpoint before a run continues from it."""
        with self.writing(tid) as (session, thread):
            if checkpoint.commit and checkpoint is not thread.head(""):
                session.restore(checkpoint.commit, only={"files"})
                thread.restored_checkpoint_id = checkpoint.id

    def commit(
        self, session: Session, thread: GraphThread, before: StoredCheckpoint | None, id_: str
    ) -> str:
        """Commit the present files and return the commit id.

        For an update of an older checkpoint, its files are restored first.
        """
        if before is not None and not before.ns and before is not thread.head(""):
            if before.commit and before.id != thread.restored_checkpoint_id:
                session.restore(before.commit, only={"files"})
            thread.restored_checkpoint_id = ""
        return session.commit(f"checkpoint {id_}").oid


def _is_stored(session: Session, event: Event) -> bool:
    """Return True if the event is in the store.

    Releasing a session flushes its pending events, unless the lease was already lost.
    """
    stored = session.internals.event_log.event(session.internals.event_log.timeline, event.seq)
    return stored is not None and stored.hash == event.hash
