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
from ortet.objects.store import LocalObjectStore
from ortet.server.dispatch import BODY_TIMEOUT_SECONDS
from ortet.server.errors import TooSlow, error_response

MAX_CALL_BYTES = 64 << 20
"""Bytes of one call at most, but for uploads: those go to the disk."""
_MAX_ANONYMOUS_BYTES = 64 << 10
"""Bytes of a call that are taken before anybody knows whose it is."""
_MAX_ERROR_CHARACTERS = 100


class RawStoreAccess(Protocol):
    """The store of whoever asks. A hub is one."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def bucket(self) -> Bucket: ...
    @property
    def signal(self) -> Signal: ...
    @property
    def objects(self) -> LocalObjectStore: ...
    @property
    def clock(self) -> Clock: ...


Grant = Callable[[Request, str], RawStoreAccess]
"""Gives access for a scope, "read" or "write", or raises Refused. Called in a worker thread."""


def raw_error_response(error: OrtetError) -> Response:
    """An error as the client raises it again."""
    return error_response(error)


async def respond_in_thread(work: Callable[[], Response]) -> Response:
    """Done in a worker thread; errors that are ours become answers."""
    try:
        return await run_sync(work)
    except OrtetError as error:
        return raw_error_response(error)


async def read_call_body(
    request: Request, grant: Grant, timeout: float = BODY_TIMEOUT_SECONDS
) -> bytes:
    """All of it, if it is not too much and not too slow. More than a little, or for longer than a
    while, is taken only from those who may ask."""
    pieces: list[bytes] = []
    size, known, begun = 0, False, anyio.current_time()
    async for piece in body_chunks(request, timeout):
        size += len(piece)
        if size > MAX_CALL_BYTES:
            raise close_connection_after(
                request,
                Refused(
                    "too_large", f"a call has more than {MAX_CALL_BYTES} bytes: write less at once"
                ),
            )
        if not known and (size > _MAX_ANONYMOUS_BYTES or anyio.current_time() - begun > timeout):
            try:
                await run_sync(grant, request, "read")
            except OrtetError as error:
                raise close_connection_after(request, error) from None
            known = True
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def body_chunks(
    request: Request, timeout: float = BODY_TIMEOUT_SECONDS
) -> AsyncIterator[bytes]:
    """A body as it comes; who sends nothing of it for `slowest` seconds is not waited for."""
    body = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(timeout):
                piece = await anext(body, None)
        except TimeoutError:
            told = TooSlow("too_slow", f"nothing came for {timeout:g} s: send it anew")
            raise close_connection_after(request, told) from None
        except ClientDisconnect:
            raise Invalid("cut_off", "the body ended too soon: send it anew") from None
        if piece is None:
            return
        yield piece


def close_connection_after(request: Request, error: OrtetError) -> OrtetError:
    """The rest of the body is not waited for."""
    request.scope.setdefault("state", {})["end"] = True
    return error


def parse_call(type_: Any, body: bytes) -> Any:
    try:
        return unpack(type_, body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = str(error)[:_MAX_ERROR_CHARACTERS]
        raise Invalid(
            "bad_call", f"this is not a call of that method ({text}): use the same release of ortet"
        ) from error
