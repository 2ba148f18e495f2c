"""Server-sent events: a stream that a client can leave and resume without loss.

Nothing is queued for a client. A stream reads a page, and the next one after the client took it. A
client that does not read costs one page, and its stream ends after a timeout. When it reconnects
with the id of its last event, it misses nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Annotated, Any, Protocol

import anyio
import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ortet.errors import OrtetError
from ortet.server import wire
from ortet.server.errors import error_body
from ortet.server.streaming.wakeups import StoreWakeups, WakeupListener

HEARTBEAT_SECONDS = 15
"""Time without events after which a comment is sent, to show that the stream is alive."""
RETRY_MILLISECONDS = 1000
"""Time after which a client should reconnect."""
SEND_TIMEOUT_SECONDS = 60.0
"""Time limit for a client to take what was sent."""

MEDIA = "text/event-stream"
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


class Follow(msgspec.Struct, frozen=True):
    """`after`: the id of the last event that the client has, for clients that cannot send the
    header Last-Event-ID. `heartbeat`: the number of seconds without events after which a comment is
    sent.
    """

    after: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    heartbeat: Annotated[int, msgspec.Meta(ge=1, le=60)] = HEARTBEAT_SECONDS


def request_cursor(request: Request, ask: Follow) -> str:
    """Return the client's cursor.

    The header that browsers send on reconnection takes precedence.
    """
    return request.headers.get("last-event-id", "")[:4000] or ask.after


class StreamEvent(msgspec.Struct, frozen=True):
    """One event in its wire format. `kind` is used to select events."""

    frame: bytes
    kind: str = ""


class StreamPage(msgspec.Struct, frozen=True):
    """The events that were read at once.

    `cursor` is where to continue; as text it is the id of the last event. `more`: the next page is
    ready. `over`: the reason why the stream has ended, or "".
    """

    events: Sequence[StreamEvent]
    cursor: Any
    more: bool = False
    over: str = ""


class StreamSource(ABC):
    """The source of a stream. `topics` are the signals that wake it."""

    topics: tuple[str, ...]

    @abstractmethod
    async def page(self, cursor: Any) -> StreamPage:
        """Return the events after the cursor."""

    def includes(self, event: StreamEvent) -> bool:  # noqa: ARG002
        """Return True if the client wants this event."""
        return True

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release resources when the stream has ended."""


def make_event(data: Any, *, id: str = "", name: str = "", kind: str = "") -> StreamEvent:
    """Return an event.

    Without `name` it is of the stream's default type. JSON has no line breaks.
    """
    head = f"id: {id}\n" if id else ""
    head += f"event: {name}\n" if name else ""
    return StreamEvent(head.encode() + b"data: " + wire.to_json(data) + b"\n\n", kind)


class StreamHost(Protocol):
    """The part of a server that its event streams share."""

    stopping: bool

    def count_stream(self) -> AbstractContextManager[None]:
        """Count a stream while it is open."""

    def wakeups(self, request: HTTPConnection) -> StoreWakeups:
        """Return the wake-ups of the caller's store."""

    async def is_authorized(self, request: HTTPConnection) -> bool:
        """Return True if the caller's token is still valid and unchanged."""


class EventStream(Response):
    """A response that sends events until the client disconnects or the source ends."""

    media_type = MEDIA

    def __init__(
        self,
        host: StreamHost,
        request: Request,
        source: StreamSource,
        first_page: StreamPage,
        heartbeat: float,
    ) -> None:
        super().__init__(status_code=200, headers=_HEADERS)
        del self.headers["content-length"]
        self._host = host
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
                with self._host.count_stream():
                    await self._run(_SseConnection(send, self.raw_headers))
            finally:
                self._source.close()
            group.cancel_scope.cancel()

    async def _run(self, connection: _SseConnection) -> None:
        try:
            await connection.start()
            with self._host.wakeups(self._request).listen(*self._source.topics) as bell:
                bell.wake(set())  # events may have arrived after the first page was read
                why = await self._send_pages(connection, bell)
            await connection.end(make_event({"reason": why}, name="end").frame)
        except OrtetError as error:
            with suppress(ClientStalled):
                await connection.end(make_event(error_body(error), name="error").frame)
        except ClientStalled:
            return

    async def _send_pages(self, connection: _SseConnection, listener: WakeupListener) -> str:
        """Send pages until there is a reason to end, and return the reason."""
        page, live, clock = self._page, False, asyncio.get_running_loop().time
        checked = spoken = clock()
        while True:
            if page is not self._page and page.events:  # a revoked token gets no new events
                if not await self._host.is_authorized(self._request):
                    return "token"
                checked = clock()
            frames = [one.frame for one in page.events if self._source.includes(one)]
            if not live and not page.more:
                frames.append(make_event({}, id=str(page.cursor), name="live").frame)
                live = True
            if frames:
                await connection.send(b"".join(frames))
                spoken = clock()
            if page.over or self._host.stopping:
                return page.over or "stopping"
            if clock() - checked >= self._heartbeat:
                if not await self._host.is_authorized(self._request):
                    return "token"
                checked = clock()
            if not page.more:
                rest = min(spoken, checked) + self._heartbeat - clock()
                if not await listener.wait(max(0.0, rest)):
                    page = msgspec.structs.replace(page, events=())
                    await connection.send(b":\n\n")
                    spoken = clock()
                    continue
            listener.pop_topics()
            page = await self._source.page(page.cursor)


class ClientStalled(Exception):
    """The client does not read what was sent."""


class _SseConnection:
    """Sends to the client, with a timeout."""

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
