"""One request, from its bytes to its answer: who asks, what for, done in a thread, told in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ortet.cli.slow_calls import timed
from ortet.errors import Invalid, OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.context import Desk
from ortet.server.errors import JSON, HeadMoved, TooLarge, TooSlow, bug, refusal
from ortet.server.middleware.idempotency import Answered, check_key, once
from ortet.server.operations.registry import Operation
from ortet.server.session_pool.pool import Rooms
from ortet.sessions.reader import View
from ortet.sessions.session import Session

__all__ = ["SLOWEST", "Desk", "TooLarge", "TooSlow", "bug", "endpoint", "read_body", "refusal"]

SLOWEST = 30.0
"""Seconds in which a body must have come, or a part of one that is a stream."""

_SMALL = 64 << 10
"""Bytes of a body that is read before anybody knows whose it is: one turn in a thread then does
for both."""


def endpoint(desk: Desk, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """The route of an operation."""

    async def answer(request: Request) -> Response:
        call = _Call(desk, operation, request)
        if operation.writes:
            if not _is_small(request):
                call.caller = await desk.caller(request)
                call.caller.need(operation.needs)
            limits = desk.limits.settings
            call.body = await read_body(request, limits.body << 20, limits.body_seconds)
        if operation.on is Session:
            async with desk.line(request):
                found = await desk.in_thread(call.answer)
        else:
            found = await desk.in_thread(call.answer)
        headers = {"etag": found.etag} if found.etag else None
        return Response(found.body, found.status, headers=headers, media_type=JSON)

    return answer


class _Call:
    """One request to one operation; its methods run in a thread."""

    def __init__(self, desk: Desk, operation: Operation, request: Request) -> None:
        self._desk = desk
        self._operation = operation
        self._request = request
        self.caller: Caller | None = None
        self.body = b""

    def answer(self) -> Answered:
        operation, request = self._operation, self._request
        # anew where it was known before: it may have been revoked while the body came
        caller = self.caller = self._desk.known(request)
        caller.need(operation.needs)
        if operation.on in (Hub, Rooms) and caller.agents and not operation.filtered:
            raise Refused(
                "token_agents", "this is about all agents, and the token is for some: use another"
            )
        rooms = self._desk.tenants.rooms(caller.tenant)
        given: dict[str, Any] = {}
        if operation.ask is not None:
            given["ask"] = wire.asked(
                operation.ask,
                path=request.path_params,
                query=request.query_params.multi_items() if operation.in_query else (),
                body=None if operation.in_query else self.body,
            )
        if operation.wants_caller:
            given["caller"] = caller
        if operation.wants_rooms:
            given["rooms"] = rooms
        key = request.headers.get("idempotency-key")
        if operation.wants_key:
            given["key"] = check_key(key) if key is not None else ""
        if key is None or operation.wants_key or not operation.writes:
            return self._done(rooms, given)
        where = f"{request.url.path}?{request.url.query}"
        asked = f"{operation.method} {where}\n".encode() + self.body
        with rooms.hub() as hub:
            answer, before = once(hub, key, caller.token, asked, lambda: self._done(rooms, given))
        if before:
            self._desk.metrics.count("ortet_replays_total")
        return answer

    def _done(self, rooms: Rooms, given: dict[str, Any]) -> Answered:
        with timed(self._operation.name, "http") as timing:
            try:
                return self._performed(rooms, given)
            finally:
                if not self._operation.runs:  # that takes as long as what is run
                    timing.root = rooms.scratch.parents[1]
                    timing.session = self._request.scope["state"].get("session", "")

    def _performed(self, rooms: Rooms, given: dict[str, Any]) -> Answered:
        operation, do, caller = self._operation, self._operation.do, self.caller
        assert caller is not None
        sight = self._desk.sight
        if operation.on is Hub:
            with rooms.hub() as hub, sight.of(caller, hub):
                return self._told(do(hub, **given))
        if operation.on is Rooms:
            if operation.runs:
                self._check_runs(rooms, caller)
            return self._told(do(rooms, **given))
        row = rooms.row(self._request.path_params["session"], caller.sees)
        self._request.scope["state"]["session"] = row.id
        if operation.runs:
            caller.need_host()
        if operation.tells is not None and given["ask"].dry_run:
            with rooms.view(row.id) as view, sight.of(caller, view.hub):
                self._check_head(view)
                return self._told(operation.tells(view, given["ask"]), _etag(view))
        if operation.on is View:
            with rooms.view(row.id) as view, sight.of(caller, view.hub):
                return self._told(do(view, **given), _etag(view))
        with rooms.enter(row) as session, sight.of(caller, session.hub):
            self._check_head(session)
            found = do(session, **given)
            return self._told(found, _etag(session) if operation.moves else "")

    def _check_runs(self, rooms: Rooms, caller: Caller) -> None:
        """Whose session it is not is not told whether there is one."""
        if (named := self._request.path_params.get("session")) is not None:
            rooms.row(named, caller.sees)
        caller.need_host()

    def _check_head(self, view: View) -> None:
        """`If-Match`: only if nobody has moved the head since the caller looked."""
        wanted = self._request.headers.get("if-match")
        if wanted is None or not self._operation.moves:
            return
        now = _etag(view)
        if now not in [one.strip() for one in wanted.split(",")] and wanted != "*":
            raise HeadMoved(
                "head_moved",
                f"the head is {now}: look at what came since, then ask with that in If-Match",
                head=now.strip('"'),
            )

    def _told(self, value: Any, etag: str = "") -> Answered:
        return Answered(self._operation.status, wire.to_json(value), etag)


def _etag(view: View) -> str:
    head = view.head
    return f'"{head.oid}"' if head is not None else '""'


def _is_small(request: Request) -> bool:
    said = request.headers.get("content-length", "")
    return said.isdigit() and int(said) <= _SMALL


async def read_body(request: Request, largest: int = 16 << 20, seconds: float = SLOWEST) -> bytes:
    """All of it; TooLarge or TooSlow, and the connection ends, when it is that."""
    said = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(said) if said.isdigit() else 0
    try:
        async with asyncio.timeout(seconds):
            if size <= largest:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > largest:
                        break
                    parts.append(part)
    except TimeoutError:
        raise _ending(
            request,
            TooSlow("too_slow", f"the body did not come in {seconds:g} s: send it faster"),
        ) from None
    except ClientDisconnect:  # no fault of ours
        raise Invalid("cut_off", "the body ended too soon: send it anew") from None
    if size > largest:
        raise _ending(
            request,
            TooLarge("too_large", f"the body has more than {largest} bytes: send less at once"),
        )
    return b"".join(parts)


def _ending(request: Request, error: OrtetError) -> OrtetError:
    """The rest of the body is not waited for."""
    request.scope["state"]["end"] = True
    return error
