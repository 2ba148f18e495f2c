"""Builds the ASGI application: its routes, its exception handlers and its lifespan."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.convertors import register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

from ortet.config.settings import ServeSettings
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.hub.hub import Hub
from ortet.server.auth.authenticate import AccessPolicy, Authenticator
from ortet.server.auth.login import login_routes
from ortet.server.auth.tokens import Tokens
from ortet.server.context import AppContext
from ortet.server.dispatch import endpoint
from ortet.server.errors import bug_response, error_response
from ortet.server.middleware.requests import RequestMiddleware
from ortet.server.observability.health import Health, register_metrics, store_health_checks
from ortet.server.openapi import OpenApiDocument
from ortet.server.operations.registry import operations
from ortet.server.raw_store.grants import make_grant
from ortet.server.raw_store.routes import raw_routes
from ortet.server.session_pool.tenants import OpenHub, Tenants
from ortet.server.streaming.streams import Streams
from ortet.server.table import Endpoint, EventNumberConvertor, RawPathRoute, RouteTable
from ortet.server.transfers.routes import streaming_routes
from ortet.web.routes import page_routes

_log = logging.getLogger(__name__)
_KEY_CLEANUP_INTERVAL_SECONDS = 3600.0


def make_app(
    root: str,
    open_hub: OpenHub,
    policy: AccessPolicy,
    settings: ServeSettings | None = None,
    *,
    min_free_bytes: int = 0,
) -> Starlette:
    """Return the application for the store at `root`.

    The application opens the store and closes it at the end of its lifespan. A server must run
    `app.state.entry`, the `RequestMiddleware` that wraps the application.

    Args:
        root: Path or URL of the server's own store, which holds the tokens.
        open_hub: Opens the store of the server or of a tenant.
        policy: Host names and access rules.
        settings: Limits and timeouts.
        min_free_bytes: Free disk space below which the server is not ready.
    """
    settings = settings or ServeSettings()
    tenants = Tenants(root, open_hub, settings)
    home = open_hub(root, True)
    context = AppContext(_make_authenticator(home, policy), tenants, settings, cache=home.cache)
    streams = Streams(context)
    health = Health(context, store_health_checks(home, min_free_bytes))
    register_metrics(context, lambda: streams.count)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_drop_old_keys_hourly(context))
        try:
            yield
        finally:
            sweeping.cancel()
            health.stopping = True
            streams.stop()
            await anyio.to_thread.run_sync(streams.close)
            stuck = await anyio.to_thread.run_sync(tenants.close, settings.grace)
            if stuck:
                _log.warning("sessions were busy at the end", extra={"fields": {"count": stuck}})
            context.threads.close()
            await health.finish_checks()
            home.close()

    register_url_convertor("int", EventNumberConvertor())
    table = operation_endpoints(context)
    app = Starlette(
        routes=[
            *health.routes(),
            *login_routes(context),
            *OpenApiDocument().routes(),
            *streaming_routes(streams),
            *raw_routes(make_grant(context), settings.body_seconds),
            *routes(table),
            *page_routes(context, streams),
        ],
        lifespan=lifespan,
        exception_handlers={OrtetError: _on_ortet_error, HTTPException: _no_route, Exception: _bug},
    )
    app.state.desk = context
    app.state.streams = streams
    app.state.health = health
    app.state.entry = RequestMiddleware(app, context, RouteTable(table), declared_paths(app.routes))
    return app


def _make_authenticator(hub: Hub, policy: AccessPolicy) -> Authenticator:
    return Authenticator(Tokens(hub.catalog, hub.clock, hub.random), policy)


async def _drop_old_keys_hourly(context: AppContext) -> None:
    while True:
        await asyncio.sleep(_KEY_CLEANUP_INTERVAL_SECONDS)
        try:
            await context.in_thread(context.tenants.drop_old_keys)
        except OrtetError as error:  # for example a full disk: the next hour tries again
            _log.error("forgetting keys", exc_info=error)


def declared_paths(routes: Sequence[BaseRoute], prefix: str = "") -> dict[Any, str]:
    """Return the declared path of each endpoint, for logs and metrics."""
    paths: dict[Any, str] = {}
    for route in routes:
        if isinstance(route, Mount):
            paths |= {route.app: f"{prefix}{route.path}/*"}
            paths |= declared_paths(route.routes, prefix + route.path)
        elif isinstance(route, Route | WebSocketRoute):
            paths[route.endpoint] = prefix + route.path
    return paths


def operation_endpoints(context: AppContext) -> list[tuple[str, str, Endpoint]]:
    """Return method, path and endpoint of each operation."""
    return [(one.method, one.path, endpoint(context, one)) for one in operations()]


def routes(table: Sequence[tuple[str, str, Endpoint]]) -> list[BaseRoute]:
    """Return Starlette routes for the operations.

    `RouteTable` finds an operation first. These routes answer the rest, such as a wrong method for
    a known path.
    """
    return [RawPathRoute(path, does, methods=[method]) for method, path, does in table]


async def _on_ortet_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, OrtetError)
    return error_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method does not exist."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(
            NotFound("no_route", f"there is nothing at {request.url.path}: see /openapi.json")
        )
    answer = error_response(
        Invalid("bad_method", f"{request.method} is not for {request.url.path}: see /openapi.json")
    )
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})
    return answer


async def _bug(_: Request, error: Exception) -> Response:
    return bug_response(error)
