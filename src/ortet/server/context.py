"""AppContext: the services that every route shares."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request

from ortet._util.lock_timeout import lock_timeout
from ortet.backends.base import Cache
from ortet.config.settings import ServeSettings
from ortet.errors import Unavailable
from ortet.server.auth.authenticate import Authenticator
from ortet.server.auth.commit_visibility import CommitVisibility
from ortet.server.auth.tokens import Caller
from ortet.server.errors import Unauthorized
from ortet.server.middleware.rate_limit import RateLimiter
from ortet.server.middleware.thread_pool import RequestThreadPool
from ortet.server.observability.metrics import Metrics
from ortet.server.session_pool.tenants import Tenants

_MAX_THREADS_PER_SESSION = 4
"""Maximum number of requests of one token for one session that hold a thread.

Others wait without one.
"""

_LOCK_TIMEOUT_FACTOR = 6
"""Multiple of the session timeout (`ServeSettings.patience`) that a request waits for a store lock.

Hundreds of threads of this server may wait for the same lock, and SQLite wakes them in no order.
"""


class AppContext:
    """The services that all routes of a server share."""

    def __init__(
        self,
        authenticator: Authenticator,
        tenants: Tenants,
        settings: ServeSettings,
        *,
        cache: Cache | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.tenants = tenants
        self.rate_limiter = RateLimiter(settings, cache)
        self.metrics = Metrics()
        self.commit_visibility = CommitVisibility()
        self.threads = RequestThreadPool(settings.threads)
        self._session_queues: dict[tuple[str, str], _SessionQueue] = {}

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function in the thread pool and return its result.

        A client that disconnects does not stop the function. Store locks have a longer timeout than
        busy sessions.
        """
        seconds = _LOCK_TIMEOUT_FACTOR * self.rate_limiter.settings.patience
        return await self.threads.run(partial(_with_lock_timeout, seconds, function))

    async def authenticate(self, request: HTTPConnection) -> Caller:
        """Return the caller of a request. See `authenticate_sync`."""
        caller: Caller = await self.in_thread(partial(self.authenticate_sync, request))
        return caller

    def authenticate_sync(self, request: HTTPConnection) -> Caller:
        """Return the caller of a request; blocks, so call it in a thread.

        The rate limiter counts each request once; `RequestMiddleware` releases it at the end.

        Raises:
            Unauthorized: The request has no valid token.
            TooManyRequests: The token or the address exceeds its limits.
        """
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
        """Return a context manager in which the request holds a place of its session's queue.

        Requests of one token for one session wait here in order, without a thread, so they cannot
        block other callers.
        """
        who = request.headers.get("authorization") or request.headers.get("cookie", "")
        key = (who, request.path_params["session"])
        return _QueuedRequest(self._session_queues, key, self.rate_limiter.settings.patience)


def _with_lock_timeout(seconds: float, function: Callable[[], Any]) -> Any:
    with lock_timeout(seconds):
        return function()


class _QueuedRequest:
    """The place of one request in a session queue.

    The queue exists while at least one request uses it.
    """

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
                    "the session is busy: try again, or add a comment to it",
                ) from None
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._active -= 1
