"""The outermost ASGI application: request ids, limits, security headers, logs, metrics and spans.

It finds operations in the route table. All other requests go to the Starlette application.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortet.errors import OrtetError
from ortet.server.auth.authenticate import PROBES
from ortet.server.context import AppContext
from ortet.server.errors import bug_response, error_response
from ortet.server.observability.tracing import RequestTracer
from ortet.server.table import RouteTable

_log = logging.getLogger(__name__)
_ID = re.compile(rb"[A-Za-z0-9._-]{1,100}\Z")
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'"
)
_DATA_SECURITY_POLICY = b"default-src 'none'; frame-ancestors 'none'"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
STREAM = b"text/event-stream"


class RequestMiddleware:
    """Wraps the application. `routes` maps each endpoint to its declared path."""

    def __init__(
        self, app: ASGIApp, context: AppContext, table: RouteTable, routes: dict[Any, str]
    ) -> None:
        self._app = app
        self._context = context
        self._table = table
        self._routes = routes
        self._tracer = RequestTracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        tracker = _RequestTracker(self._context, scope, send)
        with self._tracer.request_span(tracker.method, scope["headers"]) as span:
            try:
                await self._answer(tracker, scope, receive)
            finally:
                tracker.finish(self._routes)
                fields = tracker.fields
                if span is not None:
                    self._tracer.record_response(span, fields)
                self._context.metrics.record_request(
                    tracker.method, fields["route"], tracker.status, fields["ms"] / 1000
                )
                _log.log(_level(fields), "request", extra={"fields": fields})

    async def _answer(self, tracker: _RequestTracker, scope: Scope, receive: Receive) -> None:
        try:
            tracker.admit()
            match = (
                self._table.find(tracker.method, scope["raw_path"])
                if scope["type"] == "http"
                else None
            )
            if match is None:
                await self._app(scope, receive, tracker.send)
                return
            scope["path_params"] = match.path_params
            tracker.route = match.route
            answer = await match.endpoint(Request(scope, receive, tracker.send))
        except OrtetError as error:
            answer = error_response(error)
        except Exception as error:
            self._context.metrics.count("ortet_bugs_total")
            _log.error("bug", exc_info=error, extra={"fields": {"request": tracker.id}})
            answer = bug_response(error)
        if not tracker.is_response_started:
            await self._send(answer, scope, receive, tracker)

    async def _send(
        self, answer: Response, scope: Scope, receive: Receive, tracker: _RequestTracker
    ) -> None:
        if scope["type"] == "websocket":
            await tracker.send({"type": "websocket.close", "code": 1011, "reason": "refused"})
            tracker.status = answer.status_code
        else:
            await answer(scope, receive, tracker.send)


def _level(fields: dict[str, Any]) -> int:
    """Return the log level of a request. Successful health probes are debug, as they come often."""
    if fields["status"] >= 500:
        return logging.ERROR
    return logging.DEBUG if fields["route"] in PROBES else logging.INFO


class _RequestTracker:
    """One request, from its first to its last byte."""

    def __init__(self, context: AppContext, scope: Scope, send: Send) -> None:
        self._context = context
        self._scope = scope
        self._send = send
        self._state: dict[str, Any] = scope.setdefault("state", {})
        self._started_at = time.perf_counter()
        self._is_admitted = False
        request_id = next((v for name, v in scope["headers"] if name == b"x-request-id"), b"")
        self.id = request_id.decode() if _ID.match(request_id) else secrets.token_hex(8)
        self.method: str = scope.get("method", "WEBSOCKET")
        self.route = ""
        self.status = 500
        self.is_response_started = False
        self.fields: dict[str, Any] = {}

    def admit(self) -> None:
        self._context.authenticator.check_host(self._scope)
        self._context.rate_limiter.enter()
        self._is_admitted = True

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message)
        elif kind == "websocket.accept":
            self.status, self.is_response_started = 101, True
            self._release()
        elif kind == "websocket.close" and not self.is_response_started:
            self.status, self.is_response_started = 403, True
        await self._send(message)

    def _start(self, message: Message) -> None:
        self.is_response_started = True
        self.status = message["status"]
        headers = list(message.get("headers", ()))
        names = dict(headers)
        media = names.get(b"content-type", b"")
        if media.startswith(STREAM):
            self._release()  # a stream may last for hours and is idle most of the time
        headers += _HEADERS
        headers.append((b"x-request-id", self.id.encode()))
        if b"content-security-policy" not in names:
            html = media.startswith(b"text/html")
            headers.append(
                (b"content-security-policy", PAGE_POLICY if html else _DATA_SECURITY_POLICY)
            )
        if b"cache-control" not in names:
            headers.append((b"cache-control", b"no-store"))
        if self._state.get("end"):
            headers.append((b"connection", b"close"))
        message["headers"] = headers

    def _release(self) -> None:
        if self._is_admitted:
            self._is_admitted = False
            self._context.rate_limiter.leave()
            caller = self._state.get("caller")
            if caller is not None:
                self._context.rate_limiter.release(caller)

    def finish(self, routes: dict[Any, str]) -> None:
        """Release the rate limits and set the fields for the log."""
        self._release()
        caller = self._state.get("caller")
        self.fields = {
            "request": self.id,
            "method": self.method,
            "route": self.route or routes.get(self._scope.get("endpoint"), ""),
            "status": self.status,
            "ms": round((time.perf_counter() - self._started_at) * 1000, 3),
            "session": self._state.get("session", ""),
            "token": caller.token if caller is not None else "",
        }
