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
from ortet.server.errors import error_body
from ortet.server.streaming.wakeups import WakeupListener

if TYPE_CHECKING:
    from ortet.server.streaming.streams import Streams

HEARTBEAT_SECONDS = 15
"""Seconds of silence after which a comment says that the stream is alive."""
RETRY_MILLISECONDS = 1000
"""Milliseconds after which a client is to come again."""
SEND_TIMEOUT_SECONDS = 60.0
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
    heartbeat: Annotated[int, msgspec.Meta(ge=1, le=60)] = HEARTBEAT_SECONDS


def request_cursor(request: Request, ask: Follow) -> str:
    """Where the client was: the header that browsers send when they come again goes first."""
    return request.headers.get("last-event-id", "")[:4000] or ask.after


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream, as it is sent; `kind` is what those who want only some ask for."""

    frame: bytes
    kind: str = ""


class StreamPage(msgspec.Struct, frozen=True):
    """What was read at once. `cursor` is where to go on, as text the id of the last event; `more`:
    at once. `over`: nothing will come any more, and why."""

    told: Sequence[StreamEvent]
    cursor: Any
    more: bool = False
    over: str = ""


class StreamSource(ABC):
    """What a stream is about."""

    topics: tuple[str, ...]

    @abstractmethod
    async def page(self, cursor: Any) -> StreamPage:
        """What came after the cursor."""

    def includes(self, event: StreamEvent) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Nobody reads it any more."""


def make_event(data: Any, *, id: str = "", name: str = "", kind: str = "") -> StreamEvent:
    """Without a name it is what the stream is about. JSON has no line breaks of its own."""
    head = f"id: {id}\n" if id else ""
    head += f"event: {name}\n" if name else ""
    return StreamEvent(head.encode() + b"data: " + wire.to_json(data) + b"\n\n", kind)


class EventStream(Response):
    """The answer that does not end by itself."""

    media_type = MEDIA

    def __init__(
        self,
        streams: Streams,
        request: Request,
        source: StreamSource,
        first_page: StreamPage,
        heartbeat: float,
    ) -> None:
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._streams = streams
        self._request = request
        self._source = source
        self._page = first_page
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with anyio.create_task_group() as group:

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            try:
                group.start_soon(gone)
                with self._streams.count_stream():
                    await self._run(_SseConnection(send, self.raw_headers))
            finally:
                self._source.close()
            group.cancel_scope.cancel()

    async def _run(self, connection: _SseConnection) -> None:
        try:
            await connection.start()
            with self._streams.wakeups(self._request).listen(*self._source.topics) as bell:
                bell.wake(set())  # something may have come between the first page and this
                why = await self._send_pages(connection, bell)
            await connection.end(make_event({"reason": why}, name="end").frame)
        except OrtetError as error:
            with suppress(ClientStalled):
                await connection.end(make_event(error_body(error), name="error").frame)
        except ClientStalled:
            return

    async def _send_pages(self, connection: _SseConnection, listener: WakeupListener) -> str:
        """Until there is a reason to end."""
        page, live, clock = self._page, False, asyncio.get_running_loop().time
        checked = spoken = clock()
        while True:
            if page is not self._page and page.told:  # nobody is told what came after that
                if not await self._streams.is_authorized(self._request):
                    return "token"
                checked = clock()
            told = [one.frame for one in page.told if self._source.includes(one)]
            if not live and not page.more:
                told.append(make_event({}, id=str(page.cursor), name="live").frame)
                live = True
            if told:
                await connection.send(b"".join(told))
                spoken = clock()
            if page.over or self._streams.stopping:
                return page.over or "stopping"
            if clock() - checked >= self._heartbeat:
                if not await self._streams.is_authorized(self._request):
                    return "token"
                checked = clock()
            if not page.more:
                rest = min(spoken, checked) + self._heartbeat - clock()
                if not await listener.wait(max(0.0, rest)):
                    page = msgspec.structs.replace(page, told=())
                    await connection.send(b":\n\n")
                    spoken = clock()
                    continue
            listener.pop_topics()
            page = await self._source.page(page.cursor)


class ClientStalled(Exception):
    """The client takes nothing any more."""


class _SseConnection:
    """To the client."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers

    async def start(self) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self._headers}
        await self._send_message(start)
        await self.send(f"retry: {RETRY_MILLISECONDS}\n\n".encode())

    async def send(self, data: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": data, "more_body": False})

    async def _send_message(self, message: dict[str, Any]) -> None:
        try:
            with anyio.fail_after(SEND_TIMEOUT_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise ClientStalled from None
