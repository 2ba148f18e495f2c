"""Streams: the state that all streams of a server share, such as wake-ups, limits and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ortet.errors import Unavailable
from ortet.server.auth.tokens import Caller
from ortet.server.context import AppContext
from ortet.server.errors import Unauthorized
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.output_fanout import OutputFanouts
from ortet.server.streaming.sse import EventStream, StreamPage, StreamSource
from ortet.server.streaming.wakeups import StoreWakeups
from ortet.sessions.table import SessionRow

_READER_THREADS = 8
"""Number of threads that read for streams, apart from those for requests."""


class Streams:
    """All streams of a server. Used in the event loop only."""

    def __init__(self, context: AppContext) -> None:
        self.context = context
        self.commit_visibility = context.commit_visibility
        self.output_fanouts = OutputFanouts(self)
        self.stopping = False
        self.count = 0
        self._wakeups_by_tenant: dict[str, StoreWakeups] = {}
        self._threads = anyio.CapacityLimiter(_READER_THREADS)
        self._pending_reads: dict[Any, asyncio.Task[Any]] = {}
        self._stop_callbacks: set[Callable[[], None]] = set()

    def wakeups(self, request: HTTPConnection) -> StoreWakeups:
        """Return the wake-ups of the caller's store."""
        tenant = request.state.caller.tenant
        if tenant not in self._wakeups_by_tenant:
            self._wakeups_by_tenant[tenant] = StoreWakeups(self.session_pool(request).signal)
        return self._wakeups_by_tenant[tenant]

    def session_pool(self, request: HTTPConnection) -> SessionPool:
        """Return the session pool of the caller's tenant."""
        return self.context.tenants.session_pool(request.state.caller.tenant)

    async def answer(
        self, request: Request, source: StreamSource, cursor: Any, heartbeat: float
    ) -> Response:
        """Return the stream as a response, after its first page was read.

        If the stream has ended and the client has all of it, the response is 204. A browser then
        does not reconnect.
        """
        try:
            self.check()
            first = await source.page(cursor)
        except BaseException:
            source.close()
            raise
        if first.over and not first.events:
            source.close()
            return Response(status_code=204)
        return EventStream(self, request, source, first, heartbeat)

    def check(self) -> None:
        """Raise Unavailable if the server is stopping or has too many streams."""
        if self.stopping:
            raise Unavailable(
                "stopping", "this server is stopping: use another server, or try again"
            )
        most = (
            self.context.rate_limiter.settings.streams
        )  # each stream uses a connection and some memory
        if self.count >= most:
            raise Unavailable(
                "too_many_streams", f"{most} streams are open here: try again, or ask another"
            )

    async def read(self, key: Hashable, function: Callable[[], StreamPage]) -> StreamPage:
        """Run `function` in a thread.

        Callers with the same key at the same time share the result.
        """
        page: StreamPage = await self._coalesce(key, function)
        return page

    async def is_authorized(self, request: HTTPConnection) -> bool:
        """Return True if the caller's token is still valid and unchanged."""
        caller: Caller = request.state.caller
        try:
            now = await self._coalesce(
                caller.token, partial(self.context.authenticator.authenticate, request)
            )
        except Unauthorized:
            return False
        return bool(now == caller)

    async def row(self, request: HTTPConnection, session: str) -> SessionRow:
        """Return the row of a session. Raises NotFound if the caller may not see it."""
        look = partial(self.session_pool(request).row, session, request.state.caller.sees)
        row: SessionRow = await self.in_thread(look)
        return row

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a blocking function in a thread for streams."""
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def _coalesce(self, key: Any, function: Callable[[], Any]) -> Any:
        """Share one call among callers that use the same key before it starts.

        A call that runs already is not shared: it may have read the store before the latest change.
        """
        task = self._pending_reads.get(key)
        if task is None:
            task = self._pending_reads[key] = asyncio.ensure_future(self._run_soon(key, function))
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _run_soon(self, key: Any, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        del self._pending_reads[key]
        return await self.in_thread(function)

    @contextmanager
    def count_stream(self, on_stop: Callable[[], None] | None = None) -> Iterator[None]:
        """Count a stream while it is open. `on_stop` is called when the server stops."""
        self.count += 1
        if on_stop is not None:
            self._stop_callbacks.add(on_stop)
        try:
            yield
        finally:
            self.count -= 1
            if on_stop is not None:
                self._stop_callbacks.discard(on_stop)

    def stop(self) -> None:
        """End all streams at once, because the server stops."""
        self.stopping = True
        for feed in self._wakeups_by_tenant.values():
            feed.wake(None)
        for end in list(self._stop_callbacks):
            end()

    def close(self) -> None:
        """Close the wake-ups. Blocks for a moment."""
        for feed in self._wakeups_by_tenant.values():
            feed.close()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved, because all waiting clients may have disconnected."""
    if not task.cancelled():
        task.exception()
