"""The server: its routes, and what is true of all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ortet.errors import Invalid, NotFound, OrtetError
from ortet.surface.http.dispatch import Desk, bug, endpoint, refusal
from ortet.surface.http.flows import flow_routes
from ortet.surface.http.gate import Gate, Policy
from ortet.surface.http.operations import operations
from ortet.surface.http.streams import Streams
from ortet.surface.http.tenants import OpenHub, Tenants
from ortet.surface.http.tokens import Tokens


def make_app(root: str, open_hub: OpenHub, policy: Policy) -> Starlette:
    """An application for the store at `root`; it opens it, and closes it with its lifespan."""
    tenants = Tenants(root, open_hub)
    home = open_hub(root, True)
    tokens = Tokens(home.catalog, home.clock, home.random)
    desk = Desk(Gate(tokens, policy), tenants)
    streams = Streams(desk)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            streams.stop()
            await anyio.to_thread.run_sync(streams.close)
            await anyio.to_thread.run_sync(tenants.close)
            home.close()

    app = Starlette(
        routes=[*flow_routes(streams), *routes(desk)],
        lifespan=lifespan,
        exception_handlers={
            OrtetError: _refused,
            HTTPException: _no_route,
            Exception: _bug,
        },
    )
    app.state.desk = desk
    app.state.streams = streams
    return app


def routes(desk: Desk) -> list[BaseRoute]:
    found: list[BaseRoute] = [Route("/healthz", partial(_healthy, desk))]
    for operation in operations():
        found.append(
            Route(
                operation.path,
                endpoint(desk, operation),
                methods=[operation.method],
                name=operation.name,
            )
        )
    return found


async def _healthy(_desk: Desk, _request: Request) -> Response:
    return PlainTextResponse("ok\n")


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
