"""The session interface of the OpenAI Agents SDK: its items are messages of an Ortet session."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from ortet._util.validation import check_text
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import (
    append_messages,
    check_session_options,
    clear_context,
    get_session_pool,
    replace_messages_from,
    report_invalid_value,
)
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.openai_agents.item_cache import item_cache_for, newest_messages
from ortet.integrations.openai_agents.items import messages_of
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

if TYPE_CHECKING:
    from agents.items import TResponseInputItem


# Runs calls of an event loop in one thread, in order and each to its end.

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
            behind = asyncio.ensure_future(self.do(_noop))
            while not behind.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({behind})
            raise

    def close(self) -> None:
        """Finish all calls and end the thread. The worker can be used again."""
        if self._worker_threads and self._pid == os.getpid():
            queue = self._worker_threads.pop()
            queue.close()
            queue.thread.join()

    def _put(self, job: _Job) -> None:
        here = self._pid == os.getpid()  # A forked child has no threads.
        if not (here and self._worker_threads and self._worker_threads[0].try_put(job)):
            queue = _WorkerThread(job)
            queue.thread.start()
            self._worker_threads[:], self._pid = [queue], os.getpid()


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
    for one in threads:
        one.jobs.put(None)


def _work(worker: _WorkerThread) -> None:
    while (job := worker.next()) is not None:
        call, loop, done = job
        given, failed = None, None
        try:
            given = call()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # The loop was closed: nobody waits.
            loop.call_soon_threadsafe(_set_outcome, done, given, failed)
        # Keep no references while waiting for the next job: the call would keep its owner alive.
        del job, call, loop, done, given, failed


def _set_outcome(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # It was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _noop() -> None: ...


MAIN_BRANCH = "main"


class OpenAIConversation:
    """The four methods that the SDK calls.

    Calls of one object run in the order in which they are made. Each call is done completely or not
    at all, also if the caller is cancelled. Other processes may use the same session between two
    calls.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        hub: Hub,
        *,
        agent: str = "default",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_text(session_id=session_id)
        if not session_id:
            raise Invalid("bad_name", "session_id is empty: give the id of a conversation")
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        self._options = check_session_options(options)
        self._pool = get_session_pool(hub, agent)
        self._name = session_name(session_id)
        self._branch = MAIN_BRANCH
        self._open_calls: set[str] = set()  # tool calls added here whose results may still follow
        self._worker = SerialWorker()

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._name

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """Return the items in order, or exactly the `limit` latest ones.

        The Runner counts the items and drops results without their calls itself. If the context was
        compacted, the summary comes first.
        """
        most = resolve_session_limit(limit, self.session_settings)
        found = await self._worker.do(lambda: self._items(most, branch_id))
        return cast("list[TResponseInputItem]", found)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append all items or none; they are on disk when this returns."""
        if items:
            given = list(items)
            await self._worker.do(lambda: self._add(given))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item. It stays in the history; `ortet reflog` shows it."""
        return cast("TResponseInputItem | None", await self._worker.do(self._pop))

    async def clear_session(self) -> None:
        """Clear the context. Facts, decisions and spending stay.

        The messages stay in the journal; `s.dropped()` returns them.
        """
        await self._worker.do(self._clear)

    def close(self) -> None:
        """Release the session, so that another process can open it.

        The object can be used again.
        """
        self._worker.close()
        self._pool.evict(self._session_name())

    # Synchronous bodies, run in the worker thread.

    def _items(self, limit: int | None, branch: str | None) -> list[Any]:
        name = self._session_name(branch)
        ours = self._open_calls if name == self._session_name() else set[str]()
        return self._read(lambda view: item_cache_for(view).items(view, limit, ours), name) or []

    def _add(self, items: list[Any]) -> None:
        messages = messages_of(items)
        writing = self._pool.writing(self._session_name(), **self._options)
        with report_invalid_value("item", items), writing as session:
            if calling := session.state.core.calling:
                known = {message.get("tool_call_id") for message in messages} | self._open_calls
                if any(call.id not in known for call in calling):
                    session.close_tool_calls()  # They belong to a process that ended.
            if self._name != self.session_id:
                self._record_session_id(session)
            append_messages(session, messages)
            self._open_calls = {call.id for call in session.state.core.calling}

    def _record_session_id(self, session: Session) -> None:
        """Record the session id of the SDK, if the session name does not equal it."""
        if session.state.core.events <= 1:
            session.record("openai.session", {"session_id": self.session_id})

    def _pop(self) -> Any:
        def pop(session: Session) -> Any:
            for message, items in newest_messages(session):
                if not items:
                    continue
                self._open_calls.update(results_of(message))
                self._open_calls.update(call.id for call in calls_of(message))
                replace_messages_from(session, message.seq, messages_of(items[:-1]))
                return items[-1]
            return None

        return self._write(pop)

    def _clear(self) -> None:
        self._open_calls.clear()
        self._write(clear_context)

    # Session names.

    def _session_name(self, branch: str | None = None) -> str:
        """Return the name of the Ortet session of a branch."""
        del branch
        return self._name

    def _write(self, verb: Callable[[Session], T], name: str = "") -> T | None:
        """Run `verb` on the session; return None if the session does not exist."""
        try:
            with self._pool.writing(name or self._session_name(), create=False) as session:
                return verb(session)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None

    def _read(self, verb: Callable[[SessionReader], T], name: str = "") -> T | None:
        try:
            with self._pool.reading(name or self._session_name()) as view:
                return verb(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None
