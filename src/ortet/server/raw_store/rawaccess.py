"""Who asks for the store itself, and how it is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import anyio
import msgspec
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ortet.backends.base import Bucket, Catalog, Signal
from ortet.backends.remote.protocol import unpack
from ortet.errors import Invalid, OrtetError, Refused
from ortet.ids import Clock
from ortet.objects.store import LocalObjects
from ortet.server.dispatch import SLOWEST
from ortet.server.errors import TooSlow, refusal

BODY = 64 << 20
"""Bytes of one call at most, but for uploads: those go to the disk."""
_SMALL = 64 << 10
"""Bytes of a call that are taken before anybody knows whose it is."""
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


async def body_of(request: Request, access: Grant, slowest: float = SLOWEST) -> bytes:
    """All of it, if it is not too much and not too slow. More than a little, or for longer than a
    while, is taken only from those who may ask."""
    pieces: list[bytes] = []
    size, known, begun = 0, False, anyio.current_time()
    async for piece in pieces_of(request, slowest):
        size += len(piece)
        if size > BODY:
            raise ending(
                request,
                Refused("too_large", f"a call has more than {BODY} bytes: write less at once"),
            )
        if not known and (size > _SMALL or anyio.current_time() - begun > slowest):
            try:
                await run_sync(access, request, "read")
            except OrtetError as error:
                raise ending(request, error) from None
            known = True
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def pieces_of(request: Request, slowest: float = SLOWEST) -> AsyncIterator[bytes]:
    """A body as it comes; who sends nothing of it for `slowest` seconds is not waited for."""
    body = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(slowest):
                piece = await anext(body, None)
        except TimeoutError:
            told = TooSlow("too_slow", f"nothing came for {slowest:g} s: send it anew")
            raise ending(request, told) from None
        except ClientDisconnect:
            raise Invalid("cut_off", "the body ended too soon: send it anew") from None
        if piece is None:
            return
        yield piece


def ending(request: Request, error: OrtetError) -> OrtetError:
    """The rest of the body is not waited for."""
    request.scope.setdefault("state", {})["end"] = True
    return error


def parsed(type_: Any, body: bytes) -> Any:
    try:
        return unpack(type_, body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = str(error)[:_WORDS]
        raise Invalid(
            "bad_call", f"this is not a call of that method ({text}): use the same release of ortet"
        ) from error
