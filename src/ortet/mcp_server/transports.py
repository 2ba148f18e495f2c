"""Transports: stdio for one client, HTTP for several."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import anyio

from ortet.errors import Invalid, Refused, Unavailable
from ortet.mcp_server.server import McpHandlers
from ortet.mcp_server.worker import CallWorker

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ortet.mcp_server.context import McpContext

_CALL_GRACE_SECONDS = 10.0
"""Time to wait for a running call when the server stops."""

_STREAM_GRACE_SECONDS = 3
"""Time to wait for HTTP streams when the server stops."""

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve_stdio(context: McpContext, *, allow_destructive: bool) -> None:
    """Serve the client that started this process, until its input ends or a signal comes."""
    anyio.run(_stdio, context, allow_destructive)


async def _stdio(context: McpContext, allow_destructive: bool) -> None:
    from mcp.server.stdio import stdio_server

    worker = CallWorker()
    server = McpHandlers(context, worker, allow_destructive=allow_destructive).server()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, context, worker)
        async with stdio_server() as (receiving, sending):
            await server.run(receiving, sending, server.create_initialization_options())
        await worker.stop(_CALL_GRACE_SECONDS)
        tasks.cancel_scope.cancel()


async def _end_by_signal(context: McpContext, worker: CallWorker) -> None:
    """End the process on a signal.

    A thread blocks in a read of standard input, which nothing ends.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            await worker.stop(_CALL_GRACE_SECONDS)
            context.__exit__(None, None, None)
            sys.stderr.flush()
            os._exit(128 + number)


def serve_http(
    context: McpContext,
    *,
    allow_destructive: bool,
    host: str,
    port: int,
    token: str,
    no_auth: bool = False,
) -> None:
    """Serve clients over HTTP until a signal arrives.

    Every client can run commands as this user, and all users of a host can reach loopback. Without
    a `token`, one is created and printed, unless `no_auth` is set.

    Raises:
        Invalid: `no_auth` with a token, or on an address that others can reach.
        Refused: `token_needed`, if others can reach the address and no token is set.
    """
    _check_access(host, token, no_auth)
    address = f"[{host}]" if ":" in host else host
    with _listen(host, port) as listener:
        url = f"http://{address}:{listener.getsockname()[1]}{PATH}"
        messages = [f"ortet mcp listens on {url}"]
        if not token and not no_auth:
            token = secrets.token_hex(32)
            messages += _client_settings(url, token)
        anyio.run(_http, context, allow_destructive, listener, host, token, messages)


def _check_access(host: str, token: str, no_auth: bool) -> None:
    if no_auth and token:
        raise Invalid(
            "bad_usage", "--no-auth asks for no token, and ORTET_MCP_TOKEN is one: leave one out"
        )
    if host in _LOOPBACK:
        return
    if no_auth:
        raise Invalid(
            "no_auth_here",
            f"--no-auth is for loopback, and {host} is not: leave it out and set ORTET_MCP_TOKEN",
        )
    if not token:
        raise Refused(
            "token_needed",
            f"{host} can be reached by others, who could run commands as you: set ORTET_MCP_TOKEN "
            "to a secret that clients must show, or listen on 127.0.0.1",
        )


def _client_settings(url: str, token: str) -> list[str]:
    """Return the lines with the client settings. The token cannot be read again later."""
    settings = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}"}}
    return [
        f"clients send this token, which is valid until the server ends: {token}",
        "(set ORTET_MCP_TOKEN for one that stays, or give --no-auth to ask for none)",
        f'claude mcp add --transport http ortet {url} --header "Authorization: Bearer {token}"',
        json.dumps({"mcpServers": {"ortet": settings}}),
    ]


async def _http(  # noqa: PLR0917 - as anyio calls it
    context: McpContext,
    allow_destructive: bool,
    listener: socket.socket,
    host: str,
    token: str,
    messages: list[str],
) -> None:
    import uvicorn

    worker = CallWorker()
    server = McpHandlers(context, worker, allow_destructive=allow_destructive).server()
    app: Any = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        transport_security=_transport_security() if host in _LOOPBACK else None,
    )
    config = uvicorn.Config(
        BearerTokenMiddleware(app, token) if token else app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STREAM_GRACE_SECONDS,
    )
    sys.stderr.write("".join(f"{line}\n" for line in messages))
    sys.stderr.flush()
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        with anyio.CancelScope(shield=True):
            await worker.stop(_CALL_GRACE_SECONDS)


def _transport_security() -> Any:
    """Return settings that prevent DNS rebinding.

    A web page must not reach the server through a host name that resolves to this host.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    names = ("127.0.0.1", "localhost", "[::1]")
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is named. Otherwise an answer in two
    # packets waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # clients may connect as soon as the address is printed
    except OverflowError:
        listener.close()
        raise Invalid("bad_port", f"port {port}: give one from 0 to 65535") from None
    except OSError as error:
        listener.close()
        raise Unavailable(
            "port_taken",
            f"cannot listen on {host} port {port} ({error.strerror}): give another, or 0 for any",
        ) from error
    return listener


class BearerTokenMiddleware:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._has_token(scope):
            from starlette.responses import JSONResponse

            answer = JSONResponse(
                {"error": "refused", "kind": "bad_token", "message": _NO_TOKEN, "details": {}},
                401,
                {"WWW-Authenticate": "Bearer"},
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(headers) != 1:
            return False
        kind, _, token = headers[0].partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)


_NO_TOKEN = (
    "the request has no valid token: send the one that the server printed at its start, or the "
    "value of ORTET_MCP_TOKEN, as Authorization: Bearer TOKEN"
)
