"""The threads of a store, each up to its last event, and the files that go with them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import Any

from ortet._util.fork_safety import begin_in_child
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import Lent, session_name
from ortet.integrations.langgraph.head_index import begun, is_caught_up
from ortet.integrations.langgraph.pending_writes import LATE, Offers, tell
from ortet.integrations.langgraph.thread import THREAD, Saved, Spot, Thread
from ortet.integrations.langgraph.values.encode import Maker
from ortet.integrations.langgraph.write import Record, append
from ortet.journal.event_log import Line
from ortet.journal.events import Event
from ortet.sessions.actions.artifacts import Content, load
from ortet.sessions.environment.traces import DERIVED
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow

Workspace = str | os.PathLike[str] | Callable[[str], str | os.PathLike[str]]
_Journal = tuple[SessionRow, Line, int | None]
_MOST = 64
_MANY = 10_000
_LINGER = 600.0
"""Seconds between turns of a conversation: to open one again takes what was said in it."""
_EARLY = 8
"""Events among which the one is that names a thread."""


class Threads:
    """By id, as text. One thread of this process at a time is inside a block."""

    def __init__(self, hub: Hub, agent: str, workspace: Workspace | None) -> None:
        self.lent = Lent(hub, agent=agent, linger=_LINGER)
        self.workspace = workspace
        self._anew()
        begin_in_child(self._anew)

    def _anew(self) -> None:
        """Also in a forked child: what waits in a thread of its parent, nobody writes there."""
        self._known: OrderedDict[str, Thread] = OrderedDict()
        self._latest: OrderedDict[str, Thread] = OrderedDict()  # of others, who know no more
        self._epoch = -1  # in which they were read
        self._stored = Condition()
        self._refused: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self.offers = Offers(self.is_known, self._is_here)

    @contextmanager
    def reading(self, tid: str) -> Iterator[Thread | None]:
        """None where there is no such session."""
        with self.lent.hub() as hub:
            found, fence = self._journal(hub, tid)
            yield None if found is None else self._caught_up(tid, *found, fence=fence)

    def is_known(self, tid: str) -> bool:
        """Whether this process has read the thread, so that a look at it needs no disk."""
        return tid in self._known

    def read(self, tid: str) -> None:
        """Read a thread, if there is one, so that it is known."""
        with self.reading(tid):
            pass

    @contextmanager
    def latest(self, tid: str) -> Iterator[Thread | None]:
        """For who asks for the latest checkpoint and nothing else: a thread that may not know more
        than that, and raises NotWhole where it does not know enough. None: read all of it."""
        with self.lent.hub() as hub:
            found, fence = self._journal(hub, tid)
            if found is None:
                yield None
            elif tid in self._known:
                yield self._caught_up(tid, *found, fence=fence)
            else:
                yield self._begun(hub, tid, found)

    def _journal(self, hub: Hub, tid: str) -> tuple[_Journal | None, int]:
        """With the fence of its lease where that is ours, or 0."""
        held = self.lent.held(session_name(tid))
        if held is None:
            self._forget_erased(hub, tid, 0)
            return self.lent.journal(session_name(tid)), 0
        fence = held.holding.lease.fence
        self._forget_erased(hub, tid, fence)
        return (held.row, held.line, held._ledger.tip.seq), fence

    def _begun(self, hub: Hub, tid: str, found: _Journal) -> Thread | None:
        row, line, last = found
        thread, key = self._latest.pop(tid, None), (row.id, row.timeline)
        if thread is None or thread.key != key or (last is not None and last < thread.seq):
            noted = hub.catalog.row(DERIVED, row.id)
            thread = None if noted is None else begun(noted.value, line, key, self._load)
        if thread is None or not is_caught_up(thread, line):
            return None
        self._latest[tid] = thread
        if len(self._latest) > _MOST:
            self._latest.popitem(last=False)
        return thread

    @contextmanager
    def writing(self, tid: str) -> Iterator[tuple[Session, Thread]]:
        options: dict[str, Any] = {"durability": "commit"}  # `write` and `settle` see to it
        if self.workspace is not None:
            where = self.workspace
            options["workspace"] = where(tid) if callable(where) else where
        with self.lent.writing(session_name(tid), **options) as session:
            fence, last = session.holding.lease.fence, session._ledger.tip.seq
            self._forget_erased(session.hub, tid, fence)
            thread = self._caught_up(tid, session.row, session.line, last, fence=fence)
            if thread.seq < last:  # what a checkpoint took along that failed, and nobody has stored
                session._ledger.flush()
                thread = self._caught_up(tid, session.row, session.line, last, fence=fence)
            try:
                yield session, thread
            except BaseException:
                self.forget(tid)  # it may know of what was not written after all
                raise

    def write(
        self, session: Session, thread: Thread, make: Maker, record: Record, thread_id: Any
    ) -> None:
        """A record, durable on return, with all that waited."""
        event = append(session, thread, make, record=record, thread_id=thread_id, now=True)
        self._note(thread, event.seq)

    def add(
        self, session: Session, thread: Thread, make: Maker, record: Record, thread_id: Any
    ) -> Callable[[], None]:
        """A record that waits for the next; durable once what is returned was called, outside of
        the block."""
        event = append(session, thread, make, record=record, thread_id=thread_id, now=False)
        return lambda: self._settle(session, thread, event)

    def flush(self, session: Session, thread: Thread) -> None:
        """All that was added is durable on return."""
        session._ledger.flush()
        self._note(thread, thread.seq)

    @contextmanager
    def with_offers(self, tid: str, session: Session, thread: Thread) -> Iterator[None]:
        """Around what is written: in one write with what tasks offer."""
        taken, is_stored = self.offers.take(tid, session, thread), False
        try:
            yield
            is_stored = True
        finally:
            tell(taken, is_stored=is_stored)

    def wait_for(self, tid: str, spot: Spot) -> None:
        """A checkpoint whose writes come first, as background threads have it: what was said before
        it is to be told before."""
        if self._is_here(tid, spot):
            return
        with self.reading(tid) as thread:
            if thread is not None and thread.saved(*spot) is not None:
                return
        with self._stored:
            self._stored.wait_for(lambda: self._is_here(tid, spot), LATE)

    def _is_here(self, tid: str, spot: Spot) -> bool:
        thread = self._known.get(tid)
        here = thread is not None and thread.saved(*spot) is not None
        return here or self.is_refused(tid, spot)

    def refuse(self, tid: str, spot: Spot) -> None:
        """What follows a checkpoint that was refused is refused too."""
        with self._stored:
            self._refused[tid, *spot] = None
            if len(self._refused) > _MANY:
                self._refused.popitem(last=False)
            self._stored.notify_all()

    def is_refused(self, tid: str, spot: Spot) -> bool:
        return (tid, *spot) in self._refused

    def _note(self, thread: Thread, seq: int) -> None:
        with self._stored:
            thread.stored = max(thread.stored, seq)
            self._stored.notify_all()

    def _settle(self, session: Session, thread: Thread, event: Event) -> None:
        with self.lent.hub():
            if thread.stored >= event.seq:
                return
            if not session.holding.ended:
                try:
                    session._ledger.flush()
                except BaseException:  # what is known here is not stored: it is read again
                    self._known = OrderedDict((k, t) for k, t in self._known.items() if t != thread)
                    self.lent.let_go(session.name)
                    raise
            elif not _is_stored(session, event):
                raise Refused(
                    "lease_lost",
                    "another process has taken over this thread: nothing was written; run again",
                )
            self._note(thread, event.seq)

    def _forget_erased(self, hub: Hub, tid: str, fence: int) -> None:
        """What was erased since it was read is not given any more: all is read again. Nobody erases
        anything of a session while its lease is another's: one that is ours since needs no look."""
        known = self._known.get(tid)
        if fence and known is not None and known.fence == fence:
            return
        epoch = hub.objects.gate.asked()  # which does not depend on anybody's clock
        if epoch != self._epoch:
            self._epoch = epoch
            self._known.clear()
            self._latest.clear()

    def forget(self, tid: str) -> None:
        with self.lent.hub():
            self._known.pop(tid, None)
            self._latest.pop(tid, None)

    def ids(self) -> Sequence[Any]:
        """As they were given: of sessions that LangGraph has written to."""
        found = []
        for name in self.lent.names():
            with self.lent.hub():
                journal = self.lent.journal(name)
                first = journal[1].events(0, _EARLY) if journal is not None else ()
                found += [event.data["id"] for event in first if event.kind == THREAD]
        return found

    def _caught_up(
        self, tid: str, row: SessionRow, line: Line, last: int | None, *, fence: int
    ) -> Thread:
        thread, key = self._known.get(tid), (row.id, row.timeline)
        lost = thread is not None and last is not None and last < thread.seq
        if thread is None or thread.key != key or lost:
            thread = self._known[tid] = Thread(key, self._load)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end(tid)
        if last is None or last > thread.seq:
            for event in line.events(thread.seq):
                thread.apply(event)
        if (other := self._latest.pop(tid, None)) is not None and other.key == key:
            thread.heap.take_over(other.heap)
        thread.fence = fence
        return thread

    def _load(self, oid: str, size: int) -> bytes:
        with self.lent.hub() as hub:
            return load(hub.objects, Content(oid, size))

    # files

    def go_back(self, tid: str, saved: Saved) -> None:
        """The files of an older checkpoint, before a run goes on from it."""
        with self.writing(tid) as (session, thread):
            if saved.commit and saved is not thread.head(""):
                session.restore(saved.commit, only={"files"})
                thread.travelled = saved.id

    def commit(self, session: Session, thread: Thread, before: Saved | None, id_: str) -> str:
        """The files as they are now, or, of an update to an older checkpoint, were then."""
        if before is not None and not before.ns and before is not thread.head(""):
            if before.commit and before.id != thread.travelled:
                session.restore(before.commit, only={"files"})
            thread.travelled = ""
        return session.commit(f"checkpoint {id_}").oid


def _is_stored(session: Session, event: Event) -> bool:
    """Who let the session go has written what waited, unless it was another's by then."""
    found = session.line.event(session.line.timeline, event.seq)
    return found is not None and found.hash == event.hash
