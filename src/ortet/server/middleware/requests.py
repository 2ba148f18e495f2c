"""What is true of every request: an id, limits, headers for browsers, a line in the log, counts,
a span. Operations are found here; all else goes on to the application."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortet.errors import OrtetError
from ortet.server.auth.authenticate import PROBES
from ortet.server.context import Desk
from ortet.server.errors import bug, refusal
from ortet.server.observability.tracing import Spans
from ortet.server.table import Table

_ID = re.compile(rb"[A-Za-z0-9._-]{1,100}\Z")
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'"
)
_DATA = b"default-src 'none'; frame-ancestors 'none'"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
STREAM = b"text/event-stream"


class Entry:
    """An ASGI application around ours. `routes`: the declared path of each of its endpoints."""

    def __init__(self, app: ASGIApp, desk: Desk, table: Table, routes: dict[Any, str]) -> None:
        self._app = app
        self._desk = desk
        self._table = table
        self._routes = routes
        self._spans = Spans()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        visit = _Visit(self._desk, scope, send)
        with self._spans.request(visit.method, scope["headers"]) as span:
            try:
                await self._answer(visit, scope, receive)
            finally:
                visit.end(self._routes)
                fields = visit.fields
                if span is not None:
                    self._spans.ended(span, fields)
                self._desk.metrics.done(
                    visit.method, fields["route"], visit.status, fields["ms"] / 1000
                )
                self._desk.log.say(_level(fields), "request", **fields)

    async def _answer(self, visit: _Visit, scope: Scope, receive: Receive) -> None:
        try:
            visit.enter()
            found = (
                self._table.find(visit.method, scope["raw_path"])
                if scope["type"] == "http"
                else None
            )
            if found is None:
                await self._app(scope, receive, visit.send)
                return
            scope["path_params"] = found.named
            visit.route = found.route
            answer = await found.endpoint(Request(scope, receive, visit.send))
        except OrtetError as error:
            answer = refusal(error)
        except Exception as error:
            self._desk.metrics.count("ortet_bugs_total")
            self._desk.log.fault("bug", error, request=visit.id)
            answer = bug(error)
        if not visit.started:
            await self._send(answer, scope, receive, visit)

    async def _send(self, answer: Response, scope: Scope, receive: Receive, visit: _Visit) -> None:
        if scope["type"] == "websocket":
            await visit.send({"type": "websocket.close", "code": 1011, "reason": "refused"})
            visit.status = answer.status_code
        else:
            await answer(scope, receive, visit.send)


def _level(fields: dict[str, Any]) -> str:
    """A balancer asks every few seconds: that it was told yes is nothing to read about."""
    if fields["status"] >= 500:
        return "error"
    return "debug" if fields["route"] in PROBES else "info"


class _Visit:
    """One request, from its first to its last byte."""

    def __init__(self, desk: Desk, scope: Scope, send: Send) -> None:
        self._desk = desk
        self._scope = scope
        self._send = send
        self._state: dict[str, Any] = scope.setdefault("state", {})
        self._begun = time.perf_counter()
        self._counted = False
        given = next((v for name, v in scope["headers"] if name == b"x-request-id"), b"")
        self.id = given.decode() if _ID.match(given) else secrets.token_hex(8)
        self.method: str = scope.get("method", "WEBSOCKET")
        self.route = ""
        self.status = 500
        self.started = False
        self.fields: dict[str, Any] = {}

    def enter(self) -> None:
        self._desk.gate.check_host(self._scope)
        self._desk.limits.enter()
        self._counted = True

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message)
        elif kind == "websocket.accept":
            self.status, self.started = 101, True
            self._leave()
        elif kind == "websocket.close" and not self.started:
            self.status, self.started = 403, True
        await self._send(message)

    def _start(self, message: Message) -> None:
        self.started = True
        self.status = message["status"]
        headers = list(message.get("headers", ()))
        names = dict(headers)
        media = names.get(b"content-type", b"")
        if media.startswith(STREAM):
            self._leave()  # it may last for hours, and does nothing most of the time
        headers += _HEADERS
        headers.append((b"x-request-id", self.id.encode()))
        if b"content-security-policy" not in names:
            html = media.startswith(b"text/html")
            headers.append((b"content-security-policy", PAGE_POLICY if html else _DATA))
        if b"cache-control" not in names:
            headers.append((b"cache-control", b"no-store"))
        if self._state.get("end"):
            headers.append((b"connection", b"close"))
        message["headers"] = headers

    def _leave(self) -> None:
        if self._counted:
            self._counted = False
            self._desk.limits.leave()
            caller = self._state.get("caller")
            if caller is not None:
                self._desk.limits.dismiss(caller)

    def end(self, routes: dict[Any, str]) -> None:
        """Gives back what it held, and tells what it was."""
        self._leave()
        caller = self._state.get("caller")
        self.fields = {
            "request": self.id,
            "method": self.method,
            "route": self.route or routes.get(self._scope.get("endpoint"), ""),
            "status": self.status,
            "ms": round((time.perf_counter() - self._begun) * 1000, 3),
            "session": self._state.get("session", ""),
            "token": caller.token if caller is not None else "",
        }
