"""One request, from its bytes to its answer: who asks, what for, done in a thread, told in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid, OrtetError, Refused, code_of
from ortet.session.hub import Hub
from ortet.session.session import Session
from ortet.session.view import View
from ortet.surface.http import wire
from ortet.surface.http.gate import Gate, Unknown
from ortet.surface.http.once import Answered, once
from ortet.surface.http.operations import Operation
from ortet.surface.http.rooms import Rooms
from ortet.surface.http.tenants import Tenants
from ortet.surface.http.tokens import Caller

LARGEST = 16 << 20
"""Bytes of a body, unless it is a stream."""
SLOWEST = 30.0
"""Seconds in which a body must have come."""
_THREADS = 64
_JSON = "application/json"


class Desk:
    """What every route needs."""

    def __init__(self, gate: Gate, tenants: Tenants) -> None:
        self.gate = gate
        self.tenants = tenants
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """The core blocks: it works in threads, which a client that goes away does not stop."""
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def caller(self, request: Request) -> Caller:
        caller: Caller = await self.in_thread(partial(self.gate.caller, request))
        request.state.caller = caller
        return caller


def endpoint(desk: Desk, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """The route of an operation."""

    async def answer(request: Request) -> Response:
        caller = await desk.caller(request)
        caller.need(operation.needs)
        body = await read_body(request) if operation.writes else b""
        call = _Call(desk, operation, caller, request, body)
        found = await desk.in_thread(call.answer)
        headers = {"etag": found.etag} if found.etag else {}
        return Response(found.body, found.status, headers=headers, media_type=_JSON)

    return answer


class _Call:
    """One request to one operation; its methods run in a thread."""

    def __init__(
        self, desk: Desk, operation: Operation, caller: Caller, request: Request, body: bytes
    ) -> None:
        self._desk = desk
        self._operation = operation
        self._caller = caller
        self._request = request
        self._body = body

    def answer(self) -> Answered:
        operation = self._operation
        rooms = self._desk.tenants.rooms(self._caller.tenant)
        given: dict[str, Any] = {}
        if operation.ask is not None:
            given["ask"] = wire.asked(
                operation.ask,
                path=self._request.path_params,
                query=self._request.query_params.multi_items(),
                body=self._body if operation.writes else None,
            )
        if operation.wants_caller:
            given["caller"] = self._caller
        key = self._request.headers.get("idempotency-key")
        if key is None or not operation.writes:
            return self._done(rooms, given)
        asked = f"{operation.method} {self._request.url.path}\n".encode() + self._body
        with rooms.hub() as hub:
            return once(hub, key, self._caller.token, asked, lambda: self._done(rooms, given))[0]

    def _done(self, rooms: Rooms, given: dict[str, Any]) -> Answered:
        operation, do = self._operation, self._operation.do
        if operation.on in (Hub, Rooms) and self._caller.agents and not operation.filtered:
            raise Refused(
                "token_agents", "this is about all agents, and the token is for some: use another"
            )
        if operation.on is Hub:
            with rooms.hub() as hub:
                return self._told(do(hub, **given))
        if operation.on is Rooms:
            return self._told(do(rooms, **given))
        row = rooms.row(self._request.path_params["session"], self._caller.sees)
        if operation.on is View:
            with rooms.view(row.id) as view:
                return self._told(do(view, **given), _etag(view))
        with rooms.enter(row) as session:
            self._check_head(session)
            found = do(session, **given)
            return self._told(found, _etag(session) if operation.moves else "")

    def _check_head(self, session: Session) -> None:
        """`If-Match`: only if nobody has moved the head since the caller looked."""
        wanted = self._request.headers.get("if-match")
        if wanted is None or not self._operation.moves:
            return
        now = _etag(session)
        if now not in [one.strip() for one in wanted.split(",")] and wanted != "*":
            raise HeadMoved(
                "head_moved",
                f"the head is {now}: look at what came since, then ask with that in If-Match",
                head=now.strip('"'),
            )

    def _told(self, value: Any, etag: str = "") -> Answered:
        return Answered(self._operation.status, wire.to_json(value), etag)


class HeadMoved(Refused):
    """412: the caller's condition does not hold."""


def _etag(view: View) -> str:
    head = view.head
    return f'"{head.oid}"' if head is not None else '""'


async def read_body(request: Request, largest: int = LARGEST) -> bytes:
    """All of it; Invalid when it is too large or too slow."""
    said = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(said) if said.isdigit() else 0
    try:
        with anyio.fail_after(SLOWEST):
            if size <= largest:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > largest:
                        break
                    parts.append(part)
    except TimeoutError:
        raise TooSlow(
            "too_slow", f"the body did not come in {SLOWEST:.0f} s: send it faster"
        ) from None
    if size > largest:
        raise TooLarge("too_large", f"the body has more than {largest} bytes: send less at once")
    return b"".join(parts)


class TooLarge(Invalid):
    """413."""


class TooSlow(Invalid):
    """408."""


_STATUS: dict[type[OrtetError], int] = {Unknown: 401, HeadMoved: 412, TooLarge: 413, TooSlow: 408}


def refusal(error: OrtetError) -> Response:
    """An error as it is told: the one shape that it has everywhere."""
    status = _STATUS.get(type(error)) or code_of(error).status
    headers = {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="ortet"'
    if status == 503 or error.kind in ("lease_held", "in_progress"):
        headers["retry-after"] = "1"
    return Response(wire.to_json(error.as_dict()), status, headers=headers, media_type=_JSON)


def bug(error: BaseException) -> Response:
    """What is not one of our errors: told without its words, which may hold anything."""
    told = {
        "error": "bug",
        "kind": type(error).__name__,
        "message": "this is a fault of the server: its log says more",
        "details": {},
    }
    return Response(msgspec.json.encode(told), 500, media_type=_JSON)
