"""An HTTP/1.1 protocol for uvicorn with limits that uvicorn lacks.

It limits the time and the size of a request head, the number of pipelined requests, and the number
of connections.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ortet.config.settings import ServeSettings

_MAX_PIPELINED_REQUESTS = 16
"""Maximum number of requests that a client may send before the answer to the first."""


def make_limited_protocol(settings: ServeSettings) -> type[HttpToolsProtocol]:
    """Return a protocol class with these settings, for `uvicorn.Config(http=...)`."""
    return type("Limited", (_LimitedHttpProtocol,), {"limits": settings})


class _LimitedHttpProtocol(HttpToolsProtocol):
    limits: ServeSettings
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # size of the head that is being read
    _is_reading_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "too many connections")
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_reading_head:  # the chunk with its first byte does not count
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_reading_head:
            return
        if self._head_bytes > self.limits.headers << 10:
            self._refuse(431, "the head of the request is too large")
        elif self._timer is None:  # most heads arrive complete and need no timer
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_reading_head, self._head_bytes = True, 0
        self._cancel_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_reading_head:  # trailer fields after a chunked body
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > self.limits.headers << 10:
                raise ValueError("too much behind the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        self._is_reading_head, self._head_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self.transport.is_closing():
            return
        if size > self.limits.headers << 10:
            self._refuse(431, "the head of the request is too large")
        elif len(self.pipeline) >= _MAX_PIPELINED_REQUESTS:
            self.transport.abort()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_timer(self) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(self.limits.header_seconds, self._on_head_timeout)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_head_timeout(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if not self._is_reading_head:  # the client never sent a request
            self.transport.close()
        elif not busy:
            self._refuse(408, "the head of the request did not come in time")
        else:  # a pipelined request: an error would be read as the answer to the one before it
            self.transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Send an error in the common JSON shape and close the connection."""
        if self.transport.is_closing():
            return
        kinds = {408: "too_slow", 431: "too_large", 503: "too_busy"}
        names = {408: "invalid", 431: "invalid", 503: "unavailable"}
        body = (
            f'{{"error":"{names[status]}","kind":"{kinds[status]}",'
            f'"message":"{why}: ask again, with less at once","details":{{}}}}'
        ).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
