"""The stored conversation behind `OrtetSession`: items of the SDK are messages of a session.

`SerialWorker` runs calls of an event loop in one thread, in order and each to its end.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from ortet._util.validation import check_text
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import (
    append_messages,
    check_session_options,
    clear_context,
    close_open_calls,
    get_session_pool,
    replace_messages_from,
    report_invalid_value,
)
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.openai_agents.item_cache import item_cache_for, newest_messages
from ortet.integrations.openai_agents.items import OPEN_CALL_TEXT, Item, messages_of
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import ARCHIVED, CLOSED

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

_IDLE_TIMEOUT_SECONDS = 5.0
"""Seconds without a call after which the thread ends; a server may have thousands of sessions."""


class SerialWorker:
    """Runs calls one after another in a thread of its own.

    The thread starts with the first call. It ends with `close`, after some idle time, or when this
    object is collected. A round trip takes half as long as with an executor, whose overhead was a
    fifth of the time to store something.
    """

    def __init__(self) -> None:
        # empty before the first call, else one thread
        self._worker_threads: list[_WorkerThread] = []
        self._pid = os.getpid()
        weakref.finalize(self, _end, self._worker_threads).atexit = False

    async def do(self, call: Callable[[], T]) -> T:
        """Run `call` after all earlier calls and return its result.

        A thread cannot be cancelled. If the caller is cancelled, this waits until the call is done.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._put((call, loop, done))
        try:
            return await done
        except asyncio.CancelledError:
            later_call = asyncio.ensure_future(self.do(_noop))
            while not later_call.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({later_call})
            raise

    def close(self) -> None:
        """Finish all calls and end the thread. The worker can be used again."""
        if self._worker_threads and self._pid == os.getpid():
            worker_thread = self._worker_threads.pop()
            worker_thread.close()
            worker_thread.thread.join()

    def _put(self, job: _Job) -> None:
        is_same_process = self._pid == os.getpid()  # A forked child has no threads.
        if not (is_same_process and self._worker_threads and self._worker_threads[0].try_put(job)):
            worker_thread = _WorkerThread(job)
            worker_thread.thread.start()
            self._worker_threads[:], self._pid = [worker_thread], os.getpid()


class _WorkerThread:
    """The thread and its job queue.

    It has no reference to its owner, so the owner can be collected.
    """

    def __init__(self, first: _Job) -> None:
        # A daemon thread: process exit must not wait for it. A running call may use a session of
        # the pool, and closing the pool at exit already waits for that call.
        self.thread = Thread(target=_work, args=(self,), name="ortet-openai", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.jobs.put(first)
        self._lock = Lock()
        self._ended = False

    def try_put(self, job: _Job) -> bool:
        """Queue a job; False if the thread ends or has ended."""
        with self._lock:
            if not self._ended:
                self.jobs.put(job)
            return not self._ended

    def next(self) -> _Job | None:
        with suppress(Empty):
            return self.jobs.get(timeout=_IDLE_TIMEOUT_SECONDS)
        with self._lock:
            self._ended = self._ended or self.jobs.empty()
            return None if self.jobs.empty() else self.jobs.get()

    def close(self) -> None:
        with self._lock:
            self._ended = True
        self.jobs.put(None)


def _end(threads: list[_WorkerThread]) -> None:
    """End the threads after their owner was collected.

    This takes no lock, because garbage collection may interrupt this thread anywhere.
    """
    for worker_thread in threads:
        worker_thread.jobs.put(None)


def _work(worker: _WorkerThread) -> None:
    while (job := worker.next()) is not None:
        call, loop, done = job
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # The loop was closed: nobody waits.
            loop.call_soon_threadsafe(_set_outcome, done, result, failure)
        # Keep no references while waiting for the next job: the call would keep its owner alive.
        del job, call, loop, done, result, failure


def _set_outcome(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # It was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _noop() -> None: ...


MAIN_BRANCH = "main"

BRANCH_NOTE = "openai.branch"
"""The note of a fork with its branch id and its session."""


class OpenAIConversation:
    """A conversation of the SDK and the branch on which it is: the parts of OrtetSession share it.

    Calls of one object run in the order in which they are made. Each call is done completely or not
    at all, also if the caller is cancelled. Other processes may use the same session between two
    calls. All methods except `do` and `close` run in the worker thread.

    Attributes:
        session_id: the id that the SDK uses.
        name: name of the Ortet session of the main branch.
        branch: id of the current branch.
        open_calls: tool calls added or popped here whose results may still follow.
    """

    def __init__(self, session_id: str, hub: Hub, agent: str, options: dict[str, Any]) -> None:
        check_text(session_id=session_id)
        if not session_id:
            raise Invalid("bad_name", "session_id is empty: give the id of a conversation")
        self.session_id = session_id
        self.pool = get_session_pool(hub, agent)
        self.name = session_name(session_id)
        self.branch = MAIN_BRANCH
        self.open_calls: set[str] = set()
        self._current_name = self.name
        self._options = check_session_options(options)
        self._worker = SerialWorker()

    async def do(self, call: Callable[[], T]) -> T:
        """Run `call` in the worker thread, after all earlier calls."""
        return await self._worker.do(call)

    def close(self) -> None:
        """Finish all calls and release the session."""
        self._worker.close()
        self.pool.evict(self._current_name)

    # Branches.

    def session_name(self, branch: str | None = None) -> str:
        """Return the name of the Ortet session of a branch, by default of the current one.

        Raises:
            NotFound: "no_branch" if there is no such branch.
        """
        if branch is None or branch == self.branch:
            self._leave_closed_branch()
        if branch is None or branch == self.branch:
            return self._current_name
        if branch == MAIN_BRANCH:
            return self.name
        check_text(branch_id=branch)
        for name, id_ in self.forks():
            if id_ == branch:
                return name
        raise NotFound(
            "no_branch", f"there is no branch {branch!r}: list_branches() has those there are"
        )

    def switch(self, branch: str, name: str) -> None:
        """Make a branch the current one; `name` is its Ortet session."""
        self.branch, self._current_name = branch, name
        self.open_calls = set()

    def _leave_closed_branch(self) -> None:
        """Switch to main if `clear_session` of another object has closed the current branch.

        Raises:
            NotFound: "no_branch" if the current branch was deleted.
        """
        if self.branch == MAIN_BRANCH:
            return
        with self.pool.hub() as hub:
            row = hub.internals.session_manager.table.find(self.pool.agent, self._current_name)
        if row is not None and row.status not in (CLOSED, ARCHIVED):
            return
        if row is not None:
            with self.pool.reading(self._current_name) as view:
                note = view.conversation.notes().get(BRANCH_NOTE)
            if isinstance(note, dict) and note.get("cleared"):
                self.switch(MAIN_BRANCH, self.name)
                return
        raise NotFound(
            "no_branch", f"branch {self.branch!r} was deleted: switch_to_branch('main') goes on"
        )

    def close_branch(self, name: str, *, cleared: bool = False) -> None:
        """Close the session of a branch.

        Other objects that are on the branch go on with main if it was `cleared`. If the branch was
        deleted, their next call fails, because main is another conversation then.
        """
        with self.pool.writing(name, create=False) as session:
            note = session.conversation.notes().get(BRANCH_NOTE)
            if cleared and isinstance(note, dict):
                session.note(BRANCH_NOTE, {**note, "cleared": True})
            session.finish("branch deleted")

    def forks(self) -> list[tuple[str, str]]:
        """Return the session name and branch id of each branch except main."""
        branches = []
        for name in self.pool.names(f"{self.name}/"):
            with self.pool.reading(name) as view:
                if view.status not in (CLOSED, ARCHIVED):
                    branches.append((name, self._branch_id(view)))
        return branches

    def _branch_id(self, view: SessionReader) -> str:
        note = view.conversation.notes().get(BRANCH_NOTE)
        # A fork of this branch inherits the note, but is another session.
        if isinstance(note, dict) and note.get("session") == view.id:
            return str(note.get("id"))
        return view.name.removeprefix(f"{self.name}/")

    # Items.

    def items(self, limit: int | None, branch: str | None) -> list[Item]:
        """Return all items of a branch, or the latest ones."""
        name = self.session_name(branch)
        open_calls = self.open_calls if name == self._current_name else set[str]()
        return (
            self.read(lambda view: item_cache_for(view).items(view, limit, open_calls), name) or []
        )

    def add(self, items: list[Any]) -> None:
        """Append all items or none to the current branch."""
        messages = messages_of(items)
        self._on_current_branch(lambda name: self._add(name, items, messages))

    def _add(self, name: str, items: list[Any], messages: list[dict[str, Any]]) -> None:
        writing = self.pool.writing(name, **self._options)
        with report_invalid_value("item", items), writing as session:
            if calling := session.internals.state.core.calling:
                known = {message.get("tool_call_id") for message in messages} | self.open_calls
                if any(call.id not in known for call in calling):
                    texts = {call.id: OPEN_CALL_TEXT for call in calling}
                    close_open_calls(session, texts)
            if self.name != self.session_id:
                self._record_session_id(session)
            append_messages(session, messages)
            self.open_calls = {call.id for call in session.internals.state.core.calling}

    def _record_session_id(self, session: Session) -> None:
        """Record the session id of the SDK, if the session name does not equal it."""
        if session.internals.state.core.events <= 1:
            session.record("openai.session", {"session_id": self.session_id})

    def pop(self) -> Any:
        """Remove and return the latest item of the current branch, or return None."""

        def pop_from(session: Session) -> Any:
            for message, items in newest_messages(session):
                if not items:
                    continue
                self.open_calls.update(results_of(message))
                self.open_calls.update(call.id for call in calls_of(message))
                replace_messages_from(session, message.seq, messages_of(items[:-1]))
                return items[-1]
            return None

        return self.write(pop_from)

    def clear(self) -> None:
        """Drop all items of the current branch from the context."""
        self.open_calls.clear()
        self.write(clear_context)

    # Access to the session.

    def write(self, verb: Callable[[Session], T]) -> T | None:
        """Run `verb` on the session of the current branch; None if the session does not exist."""

        def run(name: str) -> T:
            with self.pool.writing(name, create=False) as session:
                return verb(session)

        try:
            return self._on_current_branch(run)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None

    def _on_current_branch(self, call: Callable[[str], T]) -> T:
        """Call with the session name of the current branch.

        Another object may close the branch while this one waits for its session.
        """
        name = self.session_name()
        try:
            return call(name)
        except Conflict as error:
            if error.kind != "session_closed" or self.session_name() == name:
                raise
            return call(self._current_name)

    def read(self, verb: Callable[[SessionReader], T], name: str = "") -> T | None:
        """Run `verb` on a view of the session; return None if the session does not exist."""
        try:
            with self.pool.reading(name or self.session_name()) as view:
                return verb(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None
