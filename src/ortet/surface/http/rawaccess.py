"""Who asks for the store itself, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from ortet.backend.abc import Bucket, Catalog, Signal
from ortet.backend.httpwire import unpack
from ortet.errors import Invalid, OrtetError, Refused
from ortet.ids import Clock
from ortet.store.objects import LocalObjects
from ortet.surface.http.answers import refusal

BODY = 64 << 20
"""Bytes of one call at most, but for uploads: those go to the disk."""
_WORDS = 100


class Access(Protocol):
    """The store of whoever asks. A hub is one."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def bucket(self) -> Bucket: ...
    @property
    def signal(self) -> Signal: ...
    @property
    def objects(self) -> LocalObjects: ...
    @property
    def clock(self) -> Clock: ...


Grant = Callable[[Request, str], Access]
"""Gives access for a scope, "read" or "write", or raises Refused. Called in a worker thread."""


def failed(error: OrtetError) -> Response:
    """An error as the client raises it again."""
    return refusal(error)


async def answering(work: Callable[[], Response]) -> Response:
    """Done in a worker thread; errors that are ours become answers."""
    try:
        return await run_sync(work)
    except OrtetError as error:
        return failed(error)


async def body_of(request: Request) -> bytes:
    """All of it, if it is not too much."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > BODY:
            raise Refused("too_large", f"a call has more than {BODY} bytes: write less at once")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def parsed(type_: Any, body: bytes) -> Any:
    try:
        return unpack(type_, body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = str(error)[:_WORDS]
        raise Invalid(
            "bad_call", f"this is not a call of that method ({text}): use the same release of ortet"
        ) from error
