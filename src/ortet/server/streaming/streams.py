"""All streams of a server: who they are for, what wakes them, and their end."""

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
from ortet.server.context import Desk
from ortet.server.errors import Unknown
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.output import Taps
from ortet.server.streaming.sse import EventStream, Page, Source
from ortet.server.streaming.wakeups import Feed
from ortet.sessions.table import SessionRow

_THREADS = 8
"""That read for streams, whatever else is done."""


class Streams:
    """Used in the event loop only."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.sight = desk.sight
        self.taps = Taps(self)
        self.stopping = False
        self.count = 0
        self._feeds: dict[str, Feed] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._begun: dict[Any, asyncio.Task[Any]] = {}
        self._ends: set[Callable[[], None]] = set()

    def feed(self, request: HTTPConnection) -> Feed:
        tenant = request.state.caller.tenant
        if tenant not in self._feeds:
            self._feeds[tenant] = Feed(self.rooms(request).signal)
        return self._feeds[tenant]

    def rooms(self, request: HTTPConnection) -> Rooms:
        return self.desk.tenants.rooms(request.state.caller.tenant)

    async def answer(self, request: Request, source: Source, cursor: Any, beat: float) -> Response:
        """The stream, if its first page can be read. One that is over, and that the client has
        whole, is 204: a browser then does not come again."""
        try:
            self.check()
            first = await source.page(cursor)
        except BaseException:
            source.close()
            raise
        if first.over and not first.told:
            source.close()
            return Response(status_code=204)
        return EventStream(self, request, source, first, beat)

    def check(self) -> None:
        if self.stopping:
            raise Unavailable("stopping", "this server is stopping: ask another, or try again")
        most = self.desk.limits.settings.streams  # each costs a connection, and some memory
        if self.count >= most:
            raise Unavailable(
                "too_many_streams", f"{most} streams are open here: try again, or ask another"
            )

    async def read(self, key: Hashable, function: Callable[[], Page]) -> Page:
        """In a thread; those who ask for the same at one moment get the same."""
        page: Page = await self._once(key, function)
        return page

    async def may(self, request: HTTPConnection) -> bool:
        """Whether who asked may still: a token may have been revoked since, or be out of time."""
        caller: Caller = request.state.caller
        try:
            now = await self._once(caller.token, partial(self.desk.gate.caller, request))
        except Unknown:
            return False
        return bool(now == caller)

    async def row(self, request: HTTPConnection, session: str) -> SessionRow:
        """Of a session that the caller sees; NotFound."""
        look = partial(self.rooms(request).row, session, request.state.caller.sees)
        row: SessionRow = await self.in_thread(look)
        return row

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def _once(self, key: Any, function: Callable[[], Any]) -> Any:
        """Joins others who have just asked for the same, but not one who is reading already: that
        one may have looked before the news came."""
        task = self._begun.get(key)
        if task is None:
            task = self._begun[key] = asyncio.ensure_future(self._soon(key, function))
            task.add_done_callback(_looked_at)
        return await asyncio.shield(task)

    async def _soon(self, key: Any, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        del self._begun[key]
        return await self.in_thread(function)

    @contextmanager
    def counted(self, end: Callable[[], None] | None = None) -> Iterator[None]:
        """While a stream is open; `end` is called when the server stops."""
        self.count += 1
        if end is not None:
            self._ends.add(end)
        try:
            yield
        finally:
            self.count -= 1
            if end is not None:
                self._ends.discard(end)

    def stop(self) -> None:
        """The server is about to end: so do all streams, at once."""
        self.stopping = True
        for feed in self._feeds.values():
            feed.ring(None)
        for end in list(self._ends):
            end()

    def close(self) -> None:
        """Blocks, for a moment."""
        for feed in self._feeds.values():
            feed.close()


def _looked_at(task: asyncio.Task[Any]) -> None:
    """All who asked may be gone by now."""
    if not task.cancelled():
        task.exception()
