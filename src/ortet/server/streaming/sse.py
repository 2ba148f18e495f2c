"""Server-Sent Events: a stream that a client can leave and take up again where it was.

Nothing is put by for a client: a stream reads a page, and the next when that was taken. So one that
does not read costs a page, and after a while its stream is ended; when it comes again with the id
of the last event that it has, it misses nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ortet.errors import OrtetError
from ortet.server import wire
from ortet.server.errors import shape_of
from ortet.server.streaming.wakeups import Bell

if TYPE_CHECKING:
    from ortet.server.streaming.streams import Streams

BEAT = 15
"""Seconds of silence after which a comment says that the stream is alive."""
RETRY = 1000
"""Milliseconds after which a client is to come again."""
DEAF = 60.0
"""Seconds in which a client must have taken what it was sent."""

MEDIA = "text/event-stream"
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


class Follow(msgspec.Struct, frozen=True):
    """`after`: the id of the last event that the client has, for one that cannot send the header
    Last-Event-ID. `heartbeat`: seconds of silence after which a comment is sent."""

    after: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    heartbeat: Annotated[int, msgspec.Meta(ge=1, le=60)] = BEAT


def cursor_of(request: Request, ask: Follow) -> str:
    """Where the client was: the header that browsers send when they come again goes first."""
    return request.headers.get("last-event-id", "")[:4000] or ask.after


class Told(msgspec.Struct, frozen=True):
    """One event of a stream, as it is sent; `kind` is what those who want only some ask for."""

    frame: bytes
    kind: str = ""


class Page(msgspec.Struct, frozen=True):
    """What was read at once. `cursor` is where to go on, as text the id of the last event; `more`:
    at once. `over`: nothing will come any more, and why."""

    told: Sequence[Told]
    cursor: Any
    more: bool = False
    over: str = ""


class Source(ABC):
    """What a stream is about."""

    topics: tuple[str, ...]

    @abstractmethod
    async def page(self, cursor: Any) -> Page:
        """What came after the cursor."""

    def wanted(self, told: Told) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Nobody reads it any more."""


def tell(data: Any, *, id: str = "", name: str = "", kind: str = "") -> Told:
    """Without a name it is what the stream is about. JSON has no line breaks of its own."""
    head = f"id: {id}\n" if id else ""
    head += f"event: {name}\n" if name else ""
    return Told(head.encode() + b"data: " + wire.to_json(data) + b"\n\n", kind)


class EventStream(Response):
    """The answer that does not end by itself."""

    media_type = MEDIA

    def __init__(
        self, streams: Streams, request: Request, source: Source, first: Page, beat: float
    ) -> None:
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._streams = streams
        self._request = request
        self._source = source
        self._page = first
        self._beat = beat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with anyio.create_task_group() as group:

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            try:
                group.start_soon(gone)
                with self._streams.counted():
                    await self._run(_Pipe(send, self.raw_headers))
            finally:
                self._source.close()
            group.cancel_scope.cancel()

    async def _run(self, pipe: _Pipe) -> None:
        try:
            await pipe.begin()
            with self._streams.feed(self._request).listen(*self._source.topics) as bell:
                bell.ring(set())  # something may have come between the first page and this
                why = await self._flow(pipe, bell)
            await pipe.end(tell({"reason": why}, name="end").frame)
        except OrtetError as error:
            with suppress(Deaf):
                await pipe.end(tell(shape_of(error), name="error").frame)
        except Deaf:
            return

    async def _flow(self, pipe: _Pipe, bell: Bell) -> str:
        """Until there is a reason to end."""
        page, live, clock = self._page, False, asyncio.get_running_loop().time
        checked = spoken = clock()
        while True:
            if page is not self._page and page.told:  # nobody is told what came after that
                if not await self._streams.may(self._request):
                    return "token"
                checked = clock()
            told = [one.frame for one in page.told if self._source.wanted(one)]
            if not live and not page.more:
                told.append(tell({}, id=str(page.cursor), name="live").frame)
                live = True
            if told:
                await pipe.send(b"".join(told))
                spoken = clock()
            if page.over or self._streams.stopping:
                return page.over or "stopping"
            if clock() - checked >= self._beat:
                if not await self._streams.may(self._request):
                    return "token"
                checked = clock()
            if not page.more:
                rest = min(spoken, checked) + self._beat - clock()
                if not await bell.wait(max(0.0, rest)):
                    page = msgspec.structs.replace(page, told=())
                    await pipe.send(b":\n\n")
                    spoken = clock()
                    continue
            bell.heard()
            page = await self._source.page(page.cursor)


class Deaf(Exception):
    """The client takes nothing any more."""


class _Pipe:
    """To the client."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers

    async def begin(self) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self._headers}
        await self._taken(start)
        await self.send(f"retry: {RETRY}\n\n".encode())

    async def send(self, data: bytes) -> None:
        await self._taken({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._taken({"type": "http.response.body", "body": data, "more_body": False})

    async def _taken(self, message: dict[str, Any]) -> None:
        try:
            with anyio.fail_after(DEAF):
                await self._send(message)
        except TimeoutError:
            raise Deaf from None
