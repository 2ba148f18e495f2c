"""The server: its routes, and what is true of all of them."""

from __future__ import annotations

import asyncio
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

from ortet.config.settings import Serve
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.hub.hub import Hub
from ortet.server.auth.authenticate import Gate, Policy
from ortet.server.auth.login import login_routes
from ortet.server.auth.tokens import Tokens
from ortet.server.context import Desk
from ortet.server.dispatch import endpoint
from ortet.server.errors import bug, refusal
from ortet.server.middleware.requests import Entry
from ortet.server.observability.health import Health, count_all
from ortet.server.observability.logs import Log, to_stderr
from ortet.server.observability.parts import parts_of
from ortet.server.openapi import Document
from ortet.server.operations.registry import operations
from ortet.server.raw_store.grants import grant_of
from ortet.server.raw_store.routes import raw_routes
from ortet.server.session_pool.tenants import OpenHub, Tenants
from ortet.server.streaming.streams import Streams
from ortet.server.table import Endpoint, Exact, Table, Whole
from ortet.server.transfers.routes import flow_routes
from ortet.web.routes import page_routes

_HOUR = 3600.0


def make_app(
    root: str,
    open_hub: OpenHub,
    policy: Policy,
    settings: Serve | None = None,
    *,
    reserve: int = 0,
    log: Log | None = None,
) -> Starlette:
    """An application for the store at `root`; it opens it, and closes it with its lifespan. What a
    server runs is its `state.entry`, which is around it."""
    settings = settings or Serve()
    log = log or Log(to_stderr, debug=settings.debug)
    tenants = Tenants(root, open_hub, settings, log.fault)
    home = open_hub(root, True)
    desk = Desk(_gate(home, policy), tenants, settings, log, cache=home.cache)
    streams = Streams(desk)
    health = Health(desk, parts_of(home, reserve, log))
    count_all(desk, lambda: streams.count)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_forget_keys(desk))
        try:
            yield
        finally:
            sweeping.cancel()
            health.stopping = True
            streams.stop()
            await anyio.to_thread.run_sync(streams.close)
            stuck = await anyio.to_thread.run_sync(tenants.close, settings.grace)
            if stuck:
                log.say("warning", "sessions were busy at the end", count=stuck)
            desk.threads.close()
            await health.settle()
            home.close()

    register_url_convertor("int", Whole())
    table = operation_lines(desk)
    app = Starlette(
        routes=[
            *health.routes(),
            *login_routes(desk),
            *Document().routes(),
            *flow_routes(streams),
            *raw_routes(grant_of(desk), settings.body_seconds),
            *routes(table),
            *page_routes(desk, streams),
        ],
        lifespan=lifespan,
        exception_handlers={OrtetError: _refused, HTTPException: _no_route, Exception: _bug},
    )
    app.state.desk = desk
    app.state.streams = streams
    app.state.health = health
    app.state.entry = Entry(app, desk, Table(table), declared(app.routes))
    return app


def _gate(home: Hub, policy: Policy) -> Gate:
    return Gate(Tokens(home.catalog, home.clock, home.random), policy)


async def _forget_keys(desk: Desk) -> None:
    while True:
        await asyncio.sleep(_HOUR)
        try:
            await desk.in_thread(desk.tenants.forget_keys)
        except OrtetError as error:  # a full disk: the next hour tries again
            desk.log.fault("forgetting keys", error)


def declared(routes: Sequence[BaseRoute], prefix: str = "") -> dict[Any, str]:
    """The path of each endpoint, as it was declared."""
    found: dict[Any, str] = {}
    for route in routes:
        if isinstance(route, Mount):
            found |= {route.app: f"{prefix}{route.path}/*"}
            found |= declared(route.routes, prefix + route.path)
        elif isinstance(route, Route | WebSocketRoute):
            found[route.endpoint] = prefix + route.path
    return found


def operation_lines(desk: Desk) -> list[tuple[str, str, Endpoint]]:
    return [(one.method, one.path, endpoint(desk, one)) for one in operations()]


def routes(table: Sequence[tuple[str, str, Endpoint]]) -> list[BaseRoute]:
    """The same for what the table does not find: a method that is not for a path."""
    return [Exact(path, does, methods=[method]) for method, path, does in table]


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, OrtetError)
    return refusal(error)


async def _no_route(request: Request, error: Exception) -> Response:
    """A path or a method that is not there."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal(
            NotFound("no_route", f"there is nothing at {request.url.path}: see /openapi.json")
        )
    answer = refusal(
        Invalid("bad_method", f"{request.method} is not for {request.url.path}: see /openapi.json")
    )
    answer.status_code = error.status_code
    answer.headers.update(error.headers or {})
    return answer


async def _bug(_: Request, error: Exception) -> Response:
    return bug(error)
