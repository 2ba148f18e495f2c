"""A pool of open sessions for a framework that calls from any thread or event loop.

How an adapter uses it (see `AdapterSessionPool` for each method):

    self._pool = AdapterSessionPool(hub, agent=agent)
    name = session_name(user_id, conversation_id)        # any foreign ids, always the same number

    with self._pool.writing(name, goal="…") as session:  # created if it does not exist
        session.say_all([...])                           # one write: all or nothing, durable
    with self._pool.reading(name) as view:               # NotFound if it does not exist
        messages = view.messages()

    async def add(self, ...): await asyncio.to_thread(self._add, ...)   # async methods

A block must be short: meanwhile no other thread of this process can use a session of the pool. Copy
what you read in a block before you leave it.

Between blocks the session stays open, so that the next block is cheap. Another process that
requests the session gets it as soon as no block is entered and no `hold` is active. This writes no
event to the journal.

A lease says who may write now, not who wrote last. To detect writes by other processes, look inside
the block.
"""

from __future__ import annotations

import atexit
import re
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock, Thread, current_thread
from typing import Any

from ortet._util.codec import Hasher
from ortet._util.fork_safety import reset_in_child
from ortet.backends.base import Signal
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Corrupt, Invalid, OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.journal.event_log import EventLog
from ortet.sessions.history.load import load_event_log
from ortet.sessions.profiles import OpenOptions
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, check_agent, no_session
from ortet.sessions.writing.lease_handover import (
    HANDOVER_TOPIC,
    RETRY_SECONDS,
    LeaseRequest,
    LeaseRequests,
    released_topic,
    request_handover,
    request_topic,
)

# Maps conversation ids of another program to session names.

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,59}")
_HASHED_ID = re.compile(r".*\+[0-9a-f]{32}")
_NUMERIC_SEGMENT = re.compile(r"n*[0-9]+")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._@-]+")


def session_name(*ids: str) -> str:
    """Return the session name of a foreign conversation.

    The name is valid and readable. Different ids, if equal in number, give different names. An id
    that is long or not valid in a name is shortened and ends in a hash. Such an id cannot be read
    back from the name: an adapter that lists foreign ids has to record them. The name never equals
    a default fork name, which is NAME/1.
    """
    if not ids:
        raise Invalid("bad_name", "a conversation without an id: give one")
    parts = [_part(id_) for id_ in ids]
    return "/".join(
        parts[:1] + ["n" + p if _NUMERIC_SEGMENT.fullmatch(p) else p for p in parts[1:]]
    )


def _part(id_: str) -> str:
    if not isinstance(id_, str):
        raise Invalid("bad_name", f"{id_!r} is no id of a conversation: give text")
    if _SAFE_ID.fullmatch(id_) and not _HASHED_ID.fullmatch(id_):
        return id_
    shown = _UNSAFE_CHARACTERS.sub("-", id_[:200]).strip("-._@")[:30] or "id"
    return f"{shown}+{Hasher().oid(id_.encode('utf-8', 'surrogatepass')).hex()[:32]}"


# Helpers of the adapter session pool: pooled session, lease waiting, maintenance thread.

_PRELOADED_MODULES = (socket,)
"""Modules that the maintenance thread uses, loaded before the thread starts.

If the thread imported a module while another thread forks, the import lock would stay held in the
child.
"""
_MAX_UNCOMMITTED_EVENTS = 1000
"""Uncommitted events above which a session is committed before another process opens it."""
_LEASE_CHECK_INTERVAL_SECONDS = 0.25
"""Seconds for which a lease check is trusted.

Nobody else takes the lease in that time, except by force.
"""


class PooledSession:
    """A session that is open in an adapter session pool."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.opened_at = self.last_used_at = time.monotonic()
        self.is_requested = False
        self._lease_checked_at = 0.0

    def has_lease(self, *, for_write: bool = False) -> bool:
        """Return True if the catalog still records this process as the lease holder.

        The lease may have ended or moved to another process while this process was suspended. With
        `for_write` a recent answer is reused, because the write itself checks the lease.
        """
        holding = self.session.internals.held_lease
        if holding.is_released:
            return False
        now = time.monotonic()
        if for_write and now - self._lease_checked_at < _LEASE_CHECK_INTERVAL_SECONDS:
            return True
        try:
            holding.renew_if_due()
        except Refused:
            return False
        held = self.session.internals.store.catalog.lease(holding.lease.name)
        mine = holding.lease
        is_held = held is not None and (held.owner, held.fence) == (mine.owner, mine.fence)
        self._lease_checked_at = now if is_held else 0.0
        return is_held

    def hand_over(self, *, lease_lost: bool = False) -> None:
        """Release the session and notify whoever waits for it."""
        signal, id_ = self.session.internals.store.signal, self.session.id
        try:
            if lease_lost:
                self.session.internals.lifecycle.abandon()
            else:
                if self.is_requested:
                    commit_if_long(self.session)
                self.session.internals.lifecycle.release_for_handover()
        finally:
            with suppress(OSError, OrtetError):
                signal.notify(released_topic(id_))


class PoolResources:
    """The hub and the open sessions of a session pool, which have to be closed.

    The finalizer of the pool holds this object, and this object does not refer to the pool. So a
    pool in a reference cycle can be collected while its hub is still reachable. Otherwise the
    garbage collector would finalize the sockets of the hub before the hub is closed.
    """

    def __init__(self) -> None:
        self.hub: Hub | None = None
        self.sessions: dict[str, PooledSession] = {}

    def close(self) -> None:
        """Release every session and close the hub. A second call does nothing."""
        hub, self.hub = self.hub, None
        while self.sessions:
            with suppress(OrtetError):  # A lease that cannot be released expires.
                self.sessions.popitem()[1].hand_over()
        if hub is not None:
            with suppress(OSError, OrtetError):
                hub.signal.notify(HANDOVER_TOPIC)  # Wake the maintenance thread.
            hub.close()


def call_weak_method(ref: weakref.WeakMethod[Callable[[], None]]) -> None:
    method = ref()
    if method is not None:
        method()


class SessionLeaseWaiter:
    """Requests a session from another process, on this or another host, until a deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._request: LeaseRequest | None = None

    def next_wait(self, hub: Hub, session: str) -> Callable[[], None] | None:
        """Send the request again and return a function that waits for an answer.

        Return None if the deadline has passed.
        """
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            return None
        self._request = self._request or LeaseRequest(hub.store, session)
        signal, topic = hub.signal, released_topic(session)
        token = signal.token(topic)
        pause = min(rest, self._request.send())
        return lambda: _wait_for(signal, topic, token, pause)

    def __enter__(self) -> SessionLeaseWaiter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._request is not None:
            self._request.__exit__(error)


def _wait_for(signal: Signal, topic: str, token: int, timeout: float) -> None:
    try:
        signal.wait(topic, token, timeout)
    except OSError:  # The signal was closed; the caller notices that next.
        time.sleep(timeout)


def invalidates_session(error: BaseException) -> bool:
    """Return True if the in-memory state may differ from the stored one and must be read again."""
    if isinstance(error, Refused):
        return error.kind == "lease_lost"
    return not isinstance(error, Exception) or isinstance(error, Unavailable | Corrupt)


def run_pool_maintenance(
    maintain: weakref.WeakMethod[Callable[[Callable[[str], bool]], bool]], hub: Hub, pause: float
) -> None:
    """Body of the maintenance thread of a session pool.

    The thread runs while a session is open and the pool exists. In a shared store a signal may not
    reach this host, so requests are also read from catalog rows.
    """
    token, going = 0, True
    signal, requests = (
        hub.signal.with_prefix(HANDOVER_TOPIC),
        LeaseRequests(hub.store) if hub.store.is_shared else None,
    )
    pause = min(RETRY_SECONDS, pause) if requests else pause
    del hub  # Drop this reference: the owner closes the hub, and then it can be collected.
    try:
        while going:
            before, rows = token, set[str]()
            try:
                before = token or signal.token(HANDOVER_TOPIC)
                signal.wait(HANDOVER_TOPIC, before, pause)
                token = signal.token(HANDOVER_TOPIC)
                if requests is not None:
                    rows = {request_topic(session) for session in requests.requested_sessions()}
            except (OSError, OrtetError):  # Requests cannot arrive at the moment.
                time.sleep(pause)
            method = maintain()
            going = method is not None and method(partial(_is_notified, signal, before, rows))
            # Drop the strong reference, so that the thread does not keep an unused pool alive.
            del method
    finally:
        with suppress(OSError, OrtetError):
            signal.close()


def _is_notified(signal: Signal, since: int, rows: set[str], topic: str) -> bool:
    try:
        return topic in rows or signal.wait(topic, since, 0)
    except (OSError, OrtetError):
        return False


def weak_callback(method: Callable[[], None]) -> Callable[[], None]:
    """Return a callback that calls the method as long as its object exists."""
    ref = weakref.WeakMethod(method)
    return lambda: call_weak_method(ref)


def close_in_thread(close: Callable[[], None]) -> None:
    """Call `close` in a new thread. Its files may already be closed by garbage collection."""

    def work() -> None:
        with suppress(OSError):
            close()

    with suppress(RuntimeError):
        # Starting a thread fails at interpreter exit, when everything is already closed.
        Thread(target=work, name="ortet-lent-close").start()


def require_hub(hub: Hub) -> Hub:
    """Return `hub`; raise Invalid if it is anything else, such as the path of a store."""
    if not isinstance(hub, Hub):
        name = type(hub).__name__
        raise Invalid("bad_hub", f"{name} is no opened store: give what ortet.open() returned")
    return hub


def commit_if_long(session: Session) -> None:
    """Commit a session that has many uncommitted events, so that the next opener reads fewer.

    Sessions with files are skipped: their owner decides when files are committed.
    """
    ledger = session.internals.pipeline.writer
    if (
        ledger.tip.seq - ledger.event_log.base.seq > _MAX_UNCOMMITTED_EVENTS
        and not session.internals.row.has_files
    ):
        with suppress(OrtetError):
            session.commit("handed over")


def hub_open_options(hub: Hub) -> dict[str, Any]:
    """Return the options for opening the same store a second time."""
    parts = require_hub(hub).store
    return {
        "create": False,
        "clock": parts.clock,
        "random": parts.random,
        "environ": parts.environ,
        "embedder": hub.internals.services.embedder,
    }


__all__ = ["AdapterSessionPool", "session_name"]

_REACQUIRE_DELAY_SECONDS = 0.02
"""Seconds that a process waits before it requests a session again that it has just handed over."""


class AdapterSessionPool:
    """Open sessions of one agent, usable from any thread.

    The pool opens the store of `hub` a second time. It is closed with `hub`, or by `close`. In a
    forked child the pool starts empty.

    Args:
        hub: the open store.
        agent: the agent that owns the sessions.
        lease_timeout: seconds that `writing` waits for another process.
        idle_timeout: seconds that an unused session stays open.
        min_hold: seconds that this process keeps a session before it hands it over.
        max_open: number of sessions that stay open.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        agent: str = "default",
        lease_timeout: float = 5.0,
        idle_timeout: float = 30.0,
        min_hold: float = 0.1,
        max_open: int = 64,
    ) -> None:
        self.agent = check_agent(agent)
        self._lease_timeout, self._idle_timeout, self._min_hold, self._max_open = (
            lease_timeout,
            idle_timeout,
            min_hold,
            max_open,
        )
        self._hub_options, self._url = hub_open_options(hub), hub.url
        self._reset()
        # objects of the parent process that a forked child must neither close nor collect
        self._parent_state: list[Any] = []
        self._close_callback = weak_callback(self.close)
        atexit.register(self._close_callback)
        self._closing = hub.close_callbacks
        self._closing.append(self._close_callback)
        reset_in_child(self._reset_after_fork)

    def _reset(self) -> None:
        self._lock = RLock()
        self._resources = PoolResources()
        # Garbage collection may call the finalizer while the same thread writes to the same store.
        # Closing there would then wait forever.
        self._finalizer = weakref.finalize(self, close_in_thread, self._resources.close)
        self._finalizer.atexit = False  # `close` is registered with atexit
        # by name; the most recently used is last
        self._open_sessions = self._resources.sessions
        self._hold_counts: Counter[str] = Counter()
        self._block_counts: Counter[str] = Counter()
        self._released_at: dict[str, float] = {}
        self._maintenance_thread: Thread | None = None
        self._closed = False

    def _reset_after_fork(self) -> None:
        closed = self._closed
        self._finalizer.detach()
        self._parent_state.append(self._resources)
        self._reset()
        self._closed = closed

    # Methods for adapters.

    @contextmanager
    def writing(self, name: str, *, create: bool = True, **options: Any) -> Iterator[Session]:
        """Open the session for writing; no other thread uses it during the block.

        Args:
            name: the session name.
            create: create the session if it does not exist.
            options: options of `hub.session` for a new session. For an existing session only those
                that apply at opening are used, such as `durability`, `commit` and `profile`.

        Raises:
            NotFound: "no_session" if it does not exist and `create` is False.
            Refused: "lease_held" if another process keeps the session.
            Conflict: "session_closed" if the session is closed.
        """
        pooled = self._enter_block(name, create=create, options=options)
        lock, session = self._lock, pooled.session
        try:
            yield session
        except BaseException as error:
            if invalidates_session(error):
                self._remove_session(name, pooled)
            raise
        finally:
            try:
                self._exit_block(name, pooled)
            finally:
                lock.release()

    @contextmanager
    def reading(self, name: str) -> Iterator[SessionReader]:
        """Open the session for reading, as of now, even if another process writes to it.

        Raises:
            NotFound: "no_session" if it does not exist.
        """
        with self.hub() as hub:
            held = self.find_open(name)
            yield (
                held
                if held is not None
                else hub.internals.session_manager.get(self._row(hub, name).id)
            )

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """Return the store for work that spans sessions. The block has exclusive use of it."""
        with self._lock:
            yield self._get_hub()

    def find_open(self, name: str) -> Session | None:
        """Return the session if it is open here and its lease is still held, else None.

        Call it inside `with pool.hub()`.
        """
        pooled = self._open_sessions.get(name)
        if pooled is None or not pooled.has_lease():
            return None
        pooled.last_used_at = time.monotonic()
        return pooled.session

    def journal(self, name: str) -> tuple[SessionRow, EventLog, int | None] | None:
        """Return the row and the event log of a session without folding its state.

        The third value is the number of the last event if this process knows it. Return None if
        there is no such session. Call it inside `with pool.hub()`.
        """
        hub = self._get_hub()
        if (held := self.find_open(name)) is not None:
            return (
                held.internals.row,
                held.internals.event_log,
                held.internals.pipeline.writer.tip.seq,
            )
        row = hub.internals.session_manager.table.find(self.agent, name)
        return None if row is None else (row, load_event_log(hub.internals.services, row)[0], None)

    def exists(self, name: str) -> bool:
        with self.hub() as hub:
            return name in self._open_sessions or hub.internals.session_manager.table.is_taken(
                self.agent, name
            )

    def names(self, prefix: str = "") -> list[str]:
        """Return the sorted names of this agent's sessions that start with `prefix`."""
        names: list[str] = []
        with self.hub() as hub:
            start = after = f"{self.agent}/{prefix}"
            if prefix and hub.catalog.row("session-name", start):
                names.append(prefix)
            while page := hub.catalog.rows("session-name", after):
                keys = [row.key for row in page if row.key.startswith(start)]
                names += [key.partition("/")[2] for key in keys]
                if len(keys) < len(page):
                    break
                after = page[-1].key
        return names

    def hold(self, name: str) -> None:
        """Keep the session in this process between blocks, for work in progress.

        No other process gets it until `release`. Each `hold` needs one `release`.
        """
        with self._lock:
            self._hold_counts[name] += 1

    def release(self, name: str) -> None:
        with self._lock:
            self._hold_counts[name] -= 1
            if self._hold_counts[name] <= 0:
                del self._hold_counts[name]
            pooled = self._open_sessions.get(name)
            if pooled is not None:
                self._evict_if_requested(name, pooled)

    @contextmanager
    def closed_session(self, name: str) -> Iterator[tuple[Hub, SessionRow]]:
        """Release the session for an operation that needs it closed, such as archive or erase.

        The session is released here and requested from other processes.

        Raises:
            NotFound: "no_session" if it does not exist.
        """
        with self.hub() as hub:
            if (pooled := self._open_sessions.get(name)) is not None:
                self._remove_session(name, pooled)
            row = self._row(hub, name)
            request_handover(hub.signal, row.id)
            yield hub, row

    def evict(self, name: str) -> None:
        """Release the session, so that another process can open it at once."""
        with self._lock:
            if (pooled := self._open_sessions.get(name)) is not None:
                self._remove_session(name, pooled)

    def close(self) -> None:
        """Release every session. Later calls raise Invalid("closed")."""
        atexit.unregister(self._close_callback)
        with suppress(ValueError):
            self._closing.remove(self._close_callback)
        self._finalizer.detach()
        with self._lock:
            self._closed = True
            keeper, self._maintenance_thread = self._maintenance_thread, None
            self._resources.close()
        if keeper is not None and keeper is not current_thread():
            keeper.join(1.0)

    def _get_hub(self) -> Hub:
        if self._closed:
            raise Invalid(
                "closed", "this hub was closed: open it again, and make the adapter with it"
            )
        if self._resources.hub is None:
            hub = open_hub(self._url, **self._hub_options)
            hub.store.allows_lease_handover = True
            self._resources.hub = hub
        return self._resources.hub

    def _row(self, hub: Hub, name: str) -> SessionRow:
        row = hub.internals.session_manager.table.find(self.agent, name)
        if row is None:
            raise no_session(name)
        return row

    def _enter_block(self, name: str, *, create: bool, options: dict[str, Any]) -> PooledSession:
        """Return the open session with the lock held.

        The lock is released while this thread waits for another process.
        """
        self._yield_to_waiter(name)
        with SessionLeaseWaiter(time.monotonic() + self._lease_timeout) as asking:
            while True:
                lock = self._lock
                lock.acquire()
                try:
                    hub = self._get_hub()
                    pooled = self._open_sessions.get(name)
                    if pooled is not None and not pooled.has_lease(for_write=True):
                        self._remove_session(name, pooled, lease_lost=True)
                        pooled = None
                    if pooled is None:
                        pooled = self._add_session(name, self._open(hub, name, create, options))
                    self._block_counts[name] += 1
                    return pooled
                except BaseException as error:
                    try:
                        wait = self._next_wait(error, name, asking)
                    finally:
                        lock.release()
                    if wait is None:
                        raise
                wait()

    def _next_wait(
        self, error: BaseException, name: str, lease_waiter: SessionLeaseWaiter
    ) -> Callable[[], None] | None:
        """Return a function that waits for another process, or None if waiting cannot help."""
        hub = self._resources.hub
        if not isinstance(error, Refused) or error.kind != "lease_held" or not hub:
            return None
        row = hub.internals.session_manager.table.find(self.agent, name)
        return None if row is None else lease_waiter.next_wait(hub, row.id)

    def _open(self, hub: Hub, name: str, create: bool, options: dict[str, Any]) -> Session:
        minds = hub.internals.session_manager
        row = minds.table.find(self.agent, name)
        if row is None:
            if not create:
                raise no_session(name)
            try:
                return hub.session(name, agent=self.agent, **options)
            except Conflict as error:
                row = minds.table.find(self.agent, name)
                if error.kind != "row_moved" or row is None:
                    raise
        manner = OpenOptions(**{key: options[key] for key in _OPEN_OPTION_NAMES if key in options})
        place = hub._files_location(
            options.get("workspace"), None, "auto", limits=None, network=None
        )
        return minds.resume_handed_over(row, location=place, options=manner)

    def _add_session(self, name: str, session: Session) -> PooledSession:
        pooled = self._open_sessions[name] = PooledSession(session)
        for other in list(self._open_sessions):
            if len(self._open_sessions) <= self._max_open:
                break
            if other != name and not self._block_counts[other] and not self._hold_counts[other]:
                self._remove_session(other, self._open_sessions[other])
        if self._maintenance_thread is None:
            run = weakref.WeakMethod(self._maintain)
            assert self._resources.hub is not None
            args = (run, self._resources.hub, self._idle_timeout / 4)
            self._maintenance_thread = Thread(
                target=run_pool_maintenance, args=args, name="ortet-lent", daemon=True
            )
            self._maintenance_thread.start()
        return pooled

    def _exit_block(self, name: str, pooled: PooledSession) -> None:
        pooled.last_used_at = time.monotonic()
        self._block_counts[name] -= 1
        if not self._block_counts[name]:
            del self._block_counts[name]
        if self._open_sessions.get(name) is not pooled:
            return
        self._open_sessions[name] = self._open_sessions.pop(name)
        opened = pooled.session.internals.manager.open_sessions
        if len(opened) > len(self._open_sessions):  # The block made forks.
            ours = {id(one.session) for one in self._open_sessions.values()}
            for fork in [one for one in opened if id(one) not in ours]:
                with suppress(OrtetError):
                    fork.pause()
        if pooled.session.internals.held_lease.is_released:
            self._remove_session(name, pooled)
        else:
            self._evict_if_requested(name, pooled)

    # Releasing sessions.

    def _is_busy(self, name: str, pooled: PooledSession) -> bool:
        if self._block_counts[name] or self._hold_counts[name]:
            return True
        with suppress(OrtetError):
            return (
                not pooled.session.internals.held_lease.is_released
                and pooled.session.programs.is_running()
            )
        return True

    def _evict_if_requested(self, name: str, pooled: PooledSession) -> None:
        late = time.monotonic() - pooled.opened_at >= self._min_hold
        if pooled.is_requested and late and not self._is_busy(name, pooled):
            self._remove_session(name, pooled)

    def _remove_session(
        self, name: str, pooled: PooledSession, *, lease_lost: bool = False
    ) -> None:
        self._open_sessions.pop(name, None)
        with suppress(OrtetError):  # The lease then expires.
            self._hand_over(name, pooled, lease_lost=lease_lost)

    def _hand_over(self, name: str, pooled: PooledSession, *, lease_lost: bool = False) -> None:
        try:
            pooled.hand_over(lease_lost=lease_lost)
        finally:
            if pooled.is_requested:
                self._released_at = {**self._recent_releases(), name: time.monotonic()}

    def _recent_releases(self) -> dict[str, float]:
        past = time.monotonic() - _REACQUIRE_DELAY_SECONDS
        return {name: when for name, when in self._released_at.items() if when > past}

    def _yield_to_waiter(self, name: str) -> None:
        """Wait briefly after a hand-over, so that the waiting process comes first."""
        gave = self._released_at.pop(name, None)
        if gave is not None and (rest := gave + _REACQUIRE_DELAY_SECONDS - time.monotonic()) > 0:
            time.sleep(rest)

    def _maintain(self, is_requested: Callable[[str], bool]) -> bool:
        """Release sessions that another process requests or that are idle.

        Return True if any session is still open.
        """
        for pooled in list(self._open_sessions.values()):
            if is_requested(request_topic(pooled.session.id)):
                pooled.is_requested = True
        with self._lock:
            now = time.monotonic()
            for name, pooled in list(self._open_sessions.items()):
                self._evict_if_requested(name, pooled)
                if now - pooled.last_used_at > self._idle_timeout and not self._is_busy(
                    name, pooled
                ):
                    self._remove_session(name, pooled)
            if not self._open_sessions:
                self._maintenance_thread = None
            return bool(self._open_sessions)


_OPEN_OPTION_NAMES = ("durability", "commit", "profile", "handover", "environment")
