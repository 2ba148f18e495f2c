"""What every route needs: who asks, the stores, threads, limits, counts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request

from ortet._util.deadlines import lock_timeout
from ortet.backends.base import Cache
from ortet.config.settings import ServeSettings
from ortet.errors import Unavailable
from ortet.server.auth.authenticate import Authenticator
from ortet.server.auth.commit_visibility import CommitVisibility
from ortet.server.auth.tokens import Caller
from ortet.server.errors import Unauthorized
from ortet.server.middleware.rate_limit import RateLimiter
from ortet.server.middleware.thread_pool import RequestThreadPool
from ortet.server.observability.logs import ServerLog
from ortet.server.observability.metrics import Metrics
from ortet.server.session_pool.tenants import Tenants

_MAX_THREADS_PER_SESSION = 4
"""Requests of one token for one session that have a thread; the others wait without one."""

_LOCK_TIMEOUT_FACTOR = 6
"""Times the patience of a request: hundreds of our own threads may stand before the same lock, and
SQLite wakes them in no order."""


class AppContext:
    def __init__(
        self,
        authenticator: Authenticator,
        tenants: Tenants,
        settings: ServeSettings,
        log: ServerLog,
        *,
        cache: Cache | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.tenants = tenants
        self.rate_limiter = RateLimiter(settings, cache)
        self.metrics = Metrics()
        self.log = log
        self.commit_visibility = CommitVisibility()
        self.threads = RequestThreadPool(settings.threads)
        self._session_queues: dict[tuple[str, str], _SessionQueue] = {}

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """The core blocks: it works in threads, which a client that goes away does not stop. A
        store that another process keeps locked is waited for longer than a busy session is."""
        seconds = _LOCK_TIMEOUT_FACTOR * self.rate_limiter.settings.patience
        return await self.threads.run(partial(_with_lock_timeout, seconds, function))

    async def authenticate(self, request: HTTPConnection) -> Caller:
        caller: Caller = await self.in_thread(partial(self.authenticate_sync, request))
        return caller

    def authenticate_sync(self, request: HTTPConnection) -> Caller:
        """The same for who is in a thread already. Counted once a request: see Entry."""
        state = request.scope["state"]
        try:
            caller = self.authenticator.authenticate(request)
        except Unauthorized:
            client = request.scope.get("client")
            self.rate_limiter.admit_address(client[0] if client else "")
            raise
        if "caller" not in state:
            self.rate_limiter.admit(caller)
            state["caller"] = caller
        return caller

    def session_queue(self, request: Request) -> _QueuedRequest:
        """Who asks much of one session waits for its turn here, in order, and keeps no thread from
        others."""
        who = request.headers.get("authorization") or request.headers.get("cookie", "")
        key = (who, request.path_params["session"])
        return _QueuedRequest(self._session_queues, key, self.rate_limiter.settings.patience)


def _with_lock_timeout(seconds: float, function: Callable[[], Any]) -> Any:
    with lock_timeout(seconds):
        return function()


class _QueuedRequest:
    """One request in a line, which is there as long as somebody stands in it."""

    def __init__(
        self, queues: dict[tuple[str, str], _SessionQueue], key: tuple[str, str], timeout: float
    ) -> None:
        self._queues = queues
        self._key = key
        self._timeout = timeout

    async def __aenter__(self) -> None:
        line = self._queue = self._queues.setdefault(self._key, _SessionQueue())
        line.users += 1
        try:
            await line.enter(self._timeout)
        except BaseException:
            self._drop_queue_if_unused()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._queue.leave()
        self._drop_queue_if_unused()

    def _drop_queue_if_unused(self) -> None:
        self._queue.users -= 1
        if not self._queue.users:
            self._queues.pop(self._key, None)


class _SessionQueue:
    def __init__(self) -> None:
        self.users = 0
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, timeout: float) -> None:
        if self._active < _MAX_THREADS_PER_SESSION:
            self._active += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, timeout)
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    "session_busy",
                    "the session is doing something else: try again, or leave it a comment",
                ) from None
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._active -= 1
