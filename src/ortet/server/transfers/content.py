"""Responses with stored content: sent in chunks, with ranges and ETags, in a sandbox.

Content that agents made may be anything, also a page with a script. Whatever its type, the browser
shows it in a sandbox without an origin and without scripts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ortet.server.streaming.streams import Streams

CHUNK_BYTES = 1 << 20
"""Size of a chunk that is read and sent at once."""
SANDBOX = (
    "sandbox; default-src 'none'; img-src 'self' data:; media-src 'self' data:; "
    "style-src 'unsafe-inline'; font-src data:; form-action 'none'; frame-ancestors 'self'"
)
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\uffff"\\/%;]')


class ResponseContent(NamedTuple):
    """Content that can be read at any offset.

    `read` blocks. `tag` identifies the content. `name` is the proposed file name.
    """

    size: int
    tag: str
    media: str
    name: str
    read: Callable[[int, int], bytes]
    close: Callable[[], None] = lambda: None


class ContentResponse(Response):
    """The response to a GET or HEAD: all of it, a range (206), or not modified (304)."""

    def __init__(
        self, streams: Streams, request: Request, stored: ResponseContent, *, download: bool = False
    ) -> None:
        self._streams = streams
        self._stored = stored
        self._start, self._stop, status = _requested_range(request, stored)
        super().__init__(status_code=status, media_type=_content_type(stored.media))
        self.headers.update(
            {
                "etag": _tag(stored),
                "accept-ranges": "bytes",
                "cache-control": "private, no-cache",
                "content-disposition": disposition(stored.name, download=download),
                "content-security-policy": SANDBOX,
                "x-content-type-options": "nosniff",
                "cross-origin-resource-policy": "same-origin",
            }
        )
        if status == 304:
            del self.headers["content-length"]
        else:
            self.headers["content-length"] = str(self._stop - self._start)
        if status == 206:
            self.headers["content-range"] = f"bytes {self._start}-{self._stop - 1}/{stored.size}"
        if status == 416:
            self.headers["content-range"] = f"bytes */{stored.size}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def gone() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(gone)
                await self._send(send, head=scope["method"] == "HEAD")
                group.cancel_scope.cancel()
        finally:
            self._stored.close()

    async def _send(self, send: Send, *, head: bool) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        position = self._stop if head else self._start
        while position < self._stop:
            size = min(CHUNK_BYTES, self._stop - position)
            data = await self._streams.in_thread(partial(self._stored.read, position, size))
            await send({"type": "http.response.body", "body": data, "more_body": True})
            position += size
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _requested_range(request: Request, stored: ResponseContent) -> tuple[int, int, int]:
    """Return the first byte, the end and the status of the response."""
    known = request.headers.get("if-none-match")
    if known is not None and (known == "*" or _tag(stored) in _tags(known)):
        return 0, 0, 304
    match = _RANGE.match(request.headers.get("range", ""))
    condition = request.headers.get("if-range", _tag(stored))
    if match is None or match.groups() == ("", "") or condition != _tag(stored):
        return 0, stored.size, 200  # several ranges are answered with the whole content
    first, last = match.groups()
    if not first:  # suffix range: the last bytes
        start, stop = max(0, stored.size - int(last)), stored.size
    else:
        start, stop = int(first), min(int(last) + 1 if last else stored.size, stored.size)
    if last and first and int(last) < int(first):
        return 0, stored.size, 200
    return (start, stop, 206) if start < stop else (0, 0, 416)


def _tag(stored: ResponseContent) -> str:
    return f'"{stored.tag}"'


def _tags(header: str) -> list[str]:
    return [one.strip().removeprefix("W/") for one in header.split(",")]


def _content_type(media: str) -> str:
    """Return a safe Content-Type header. Text is always UTF-8."""
    plain = media.partition(";")[0].strip().lower()
    if not re.fullmatch(r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,100}", plain):
        return "application/octet-stream"
    text = plain.startswith("text/") or plain in ("application/json", "image/svg+xml")
    return f"{plain}; charset=utf-8" if text else plain


def disposition(name: str, *, download: bool) -> str:
    """Return a Content-Disposition header.

    The plain name cannot be read as a path. Clients that support `filename*` get the exact name.
    """
    base = os.path.basename(name.replace("\\", "/")) or "file"
    plain = _UNSAFE.sub("_", base).strip(". ") or "file"
    raw = base.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    exact = quote("".join(one for one in raw if one.isprintable()), safe="")
    how = "attachment" if download else "inline"
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{exact}"
