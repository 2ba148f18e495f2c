"""Handles one request to an operation: authenticate, parse, run in a thread, answer in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ortet.cli.slow_calls import time_call
from ortet.errors import Invalid, OrtetError, Refused
from ortet.hub.hub import Hub, hub_of
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.context import AppContext
from ortet.server.errors import JSON, HeadMoved, TooLarge, TooSlow, bug_response, error_response
from ortet.server.middleware.idempotency import RecordedResponse, check_key, run_idempotent
from ortet.server.operations.registry import Operation
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

__all__ = [
    "BODY_TIMEOUT_SECONDS",
    "AppContext",
    "TooLarge",
    "TooSlow",
    "bug_response",
    "endpoint",
    "error_response",
    "read_body",
]

BODY_TIMEOUT_SECONDS = 30.0
"""Time limit for a request body, or for one part of a streamed body."""

_SMALL_BODY_BYTES = 64 << 10
"""Largest body that is read before authentication; one run in a thread then does both."""


def endpoint(context: AppContext, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """Return the route handler of an operation."""

    async def answer(request: Request) -> Response:
        call = _Call(context, operation, request)
        if operation.writes:
            if not _is_small(request):
                call.caller = await context.authenticate(request)
                call.caller.need(operation.needs)
            limits = context.rate_limiter.settings
            call.body = await read_body(request, limits.body << 20, limits.body_seconds)
        if operation.target is Session:
            async with context.session_queue(request):
                response = await context.in_thread(call.answer)
        else:
            response = await context.in_thread(call.answer)
        headers = {"etag": response.etag} if response.etag else None
        return Response(response.body, response.status, headers=headers, media_type=JSON)

    return answer


class _Call:
    """One request to one operation. Its methods run in a thread."""

    def __init__(self, context: AppContext, operation: Operation, request: Request) -> None:
        self._context = context
        self._operation = operation
        self._request = request
        self.caller: Caller | None = None
        self.body = b""

    def answer(self) -> RecordedResponse:
        operation, request = self._operation, self._request
        # Authenticate again if that was done before the body: the token may be revoked meanwhile.
        caller = self.caller = self._context.authenticate_sync(request)
        caller.need(operation.needs)
        if operation.target in (Hub, SessionPool) and caller.agents and not operation.filtered:
            raise Refused(
                "token_agents",
                "the operation covers all agents, and the token is limited to some: use "
                "another token",
            )
        pool = self._context.tenants.session_pool(caller.tenant)
        arguments: dict[str, Any] = {}
        if operation.request_type is not None:
            arguments["ask"] = wire.parse_request(
                operation.request_type,
                path=request.path_params,
                query=request.query_params.multi_items() if operation.in_query else (),
                body=None if operation.in_query else self.body,
            )
        if operation.wants_caller:
            arguments["caller"] = caller
        if operation.wants_pool:
            arguments["pool"] = pool
        key = request.headers.get("idempotency-key")
        if operation.wants_key:
            arguments["key"] = check_key(key) if key is not None else ""
        if key is None or operation.wants_key or not operation.writes:
            return self._run_timed(pool, arguments)
        where = f"{request.url.path}?{request.url.query}"
        fingerprint = f"{operation.method} {where}\n".encode() + self.body
        with pool.hub() as hub:
            answer, before = run_idempotent(
                hub, key, caller.token, fingerprint, lambda: self._run_timed(pool, arguments)
            )
        if before:
            self._context.metrics.count("ortet_replays_total")
        return answer

    def _run_timed(self, pool: SessionPool, arguments: dict[str, Any]) -> RecordedResponse:
        with time_call(self._operation.name, "http") as timing:
            try:
                return self._run(pool, arguments)
            finally:
                if not self._operation.needs_host:  # a command may rightly take long
                    timing.root = pool.upload_directory.parents[1]
                    timing.session = self._request.scope["state"].get("session", "")

    def _run(self, pool: SessionPool, arguments: dict[str, Any]) -> RecordedResponse:
        operation, do, caller = self._operation, self._operation.handler, self.caller
        assert caller is not None
        visibility = self._context.commit_visibility
        if operation.target is Hub:
            with pool.hub() as hub, visibility.restrict_hub(caller, hub):
                return self._response(do(hub, **arguments))
        if operation.target is SessionPool:
            if operation.needs_host:
                self._check_host_access(pool, caller)
            return self._response(do(pool, **arguments))
        row = pool.row(self._request.path_params["session"], caller.sees)
        self._request.scope["state"]["session"] = row.id
        if operation.needs_host:
            caller.need_host()
        if operation.preview is not None and arguments["ask"].dry_run:
            with pool.view(row.id) as view, visibility.restrict_hub(caller, hub_of(view)):
                self._check_head(view)
                return self._response(operation.preview(view, arguments["ask"]), _etag(view))
        if operation.target is SessionReader:
            with pool.view(row.id) as view, visibility.restrict_hub(caller, hub_of(view)):
                return self._response(do(view, **arguments), _etag(view))
        with pool.open_session(row) as session, visibility.restrict_hub(caller, hub_of(session)):
            self._check_head(session)
            value = do(session, **arguments)
            return self._response(value, _etag(session) if operation.moves_head else "")

    def _check_host_access(self, pool: SessionPool, caller: Caller) -> None:
        """Check host access, but only after the check that the caller may see the session."""
        if (named := self._request.path_params.get("session")) is not None:
            pool.row(named, caller.sees)
        caller.need_host()

    def _check_head(self, view: SessionReader) -> None:
        """Raise HeadMoved if `If-Match` names another head than the current one."""
        wanted = self._request.headers.get("if-match")
        if wanted is None or not self._operation.moves_head:
            return
        now = _etag(view)
        if now not in [one.strip() for one in wanted.split(",")] and wanted != "*":
            raise HeadMoved(
                "head_moved",
                f"the head is {now}: look at what came since, then ask with that in If-Match",
                head=now.strip('"'),
            )

    def _response(self, value: Any, etag: str = "") -> RecordedResponse:
        return RecordedResponse(self._operation.status, wire.to_json(value), etag)


def _etag(view: SessionReader) -> str:
    head = view.head
    return f'"{head.oid}"' if head is not None else '""'


def _is_small(request: Request) -> bool:
    length_text = request.headers.get("content-length", "")
    return length_text.isdigit() and int(length_text) <= _SMALL_BODY_BYTES


async def read_body(
    request: Request, largest: int = 16 << 20, seconds: float = BODY_TIMEOUT_SECONDS
) -> bytes:
    """Return the whole body of a request.

    Raises:
        TooLarge: The body exceeds `largest` bytes. The connection is closed after the answer.
        TooSlow: The body did not arrive within `seconds`. The connection is closed after the
            answer.
        Invalid: The client disconnected before the end of the body.
    """
    length_text = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(length_text) if length_text.isdigit() else 0
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
        raise _close_connection_after(
            request,
            TooSlow("too_slow", f"the body did not come in {seconds:g} s: send it faster"),
        ) from None
    except ClientDisconnect:  # the client left; not a fault of the server
        raise Invalid("cut_off", "the body ended too early: send it again") from None
    if size > largest:
        raise _close_connection_after(
            request,
            TooLarge("too_large", f"the body has more than {largest} bytes: send less at once"),
        )
    return b"".join(parts)


def _close_connection_after(request: Request, error: OrtetError) -> OrtetError:
    """Close the connection after the answer, because the rest of the body is not read."""
    request.scope["state"]["end"] = True
    return error
