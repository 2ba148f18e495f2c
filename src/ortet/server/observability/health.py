"""The routes for operators: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ortet.errors import Unavailable
from ortet.server.context import AppContext
from ortet.server.errors import JSON
from ortet.server.observability import metrics
from ortet.server.observability.parts import HealthCheck, run_checks, wait_for_checks


class Health:
    """Answers health probes. `checks` cover the services that the server depends on."""

    def __init__(self, context: AppContext, checks: Sequence[HealthCheck]) -> None:
        self._context = context
        self._checks = checks
        self.stopping = False

    @property
    def looking(self) -> bool:
        """True if a health check is running, or hangs."""
        return any(part.running is not None for part in self._checks)

    async def finish_checks(self) -> None:
        """Wait for running checks, before the services that they use are closed."""
        self.stopping = True
        await wait_for_checks(self._checks)

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
            Route("/metrics", self._metrics),
        ]

    async def _alive(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, _: Request) -> Response:
        if self.stopping:
            raise Unavailable("stopping", "this server is stopping: ask another")
        found = await run_checks(self._checks)
        answer = {"ready": True, "not_well": found} if found else {"ready": True}
        return Response(msgspec.json.encode(answer), media_type=JSON)

    async def _metrics(self, _: Request) -> Response:
        text = await self._context.in_thread(self._context.metrics.text)
        return Response(text, headers={"content-type": metrics.TYPE})


def register_metrics(context: AppContext, streams: Callable[[], int]) -> None:
    """Register gauges and counters whose values other objects hold."""
    limits, threads = context.rate_limiter, context.threads
    add = context.metrics.gauge
    add("ortet_requests_in_progress", "Requests inside, without streams.", lambda: limits.requests)
    add("ortet_streams", "Streams and terminals that are open.", streams)
    add("ortet_threads_working", "Threads that work.", lambda: threads.working)
    add("ortet_threads_waiting", "Requests that wait for a thread.", lambda: threads.waiting)
    add("ortet_rooms", "Sessions that are open here.", partial(_open_session_count, context))
    add("ortet_stores", "Stores that are open here.", lambda: len(context.tenants.open_pools()))
    context.metrics.family(
        "ortet_refused_total", "Requests over a limit.", "limit", lambda: dict(limits.refused)
    )


def _open_session_count(context: AppContext) -> float:
    return sum(rooms.count for rooms in context.tenants.open_pools().values())
