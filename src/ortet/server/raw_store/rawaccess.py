"""Access checks, body reading and answers for calls to the raw store."""

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
from ortet.objects.store import PackedObjectStore
from ortet.server.dispatch import BODY_TIMEOUT_SECONDS
from ortet.server.errors import TooSlow, error_response

MAX_CALL_BYTES = 64 << 20
"""Maximum size of a call. Uploads have no such limit, because they go to disk."""
_MAX_ANONYMOUS_BYTES = 64 << 10
"""Size of a call body that is read before authentication."""
_MAX_ERROR_CHARACTERS = 100


class RawStoreAccess(Protocol):
    """The store that a caller may use. A hub has this shape."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def bucket(self) -> Bucket: ...
    @property
    def signal(self) -> Signal: ...
    @property
    def objects(self) -> PackedObjectStore: ...
    @property
    def clock(self) -> Clock: ...


Grant = Callable[[Request, str], RawStoreAccess]
"""Returns access for the scope "read" or "write", or raises Refused. Called in a worker thread."""


def raw_error_response(error: OrtetError) -> Response:
    """Return the response for an error. The client raises the same error again."""
    return error_response(error)


async def respond_in_thread(work: Callable[[], Response]) -> Response:
    """Run `work` in a worker thread. An OrtetError becomes a response."""
    try:
        return await run_sync(work)
    except OrtetError as error:
        return raw_error_response(error)


async def read_call_body(
    request: Request, grant: Grant, timeout: float = BODY_TIMEOUT_SECONDS
) -> bytes:
    """Return the body of a call.

    A large or slow body is read to its end only if the caller has access.

    Raises:
        Refused: The body is too large, or the caller has no access.
        TooSlow: No data arrived for `timeout` seconds.
    """
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
    """Yield a body as it arrives.

    Raises:
        TooSlow: No data arrived for `timeout` seconds.
        Invalid: The client disconnected.
    """
    body = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(timeout):
                piece = await anext(body, None)
        except TimeoutError:
            too_slow = TooSlow("too_slow", f"nothing came for {timeout:g} s: send it anew")
            raise close_connection_after(request, too_slow) from None
        except ClientDisconnect:
            raise Invalid("cut_off", "the body ended too early: send it again") from None
        if piece is None:
            return
        yield piece


def close_connection_after(request: Request, error: OrtetError) -> OrtetError:
    """Close the connection after the answer, because the rest of the body is not read."""
    request.scope.setdefault("state", {})["end"] = True
    return error


def parse_call(type_: Any, body: bytes) -> Any:
    """Return the arguments of a call as a `type_`, or raise Invalid(`bad_call`)."""
    try:
        return unpack(type_, body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = str(error)[:_MAX_ERROR_CHARACTERS]
        raise Invalid(
            "bad_call", f"this is not a call of that method ({text}): use the same release of ortet"
        ) from error
