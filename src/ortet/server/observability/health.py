"""For those who look after a server: is it alive, can it work, what does it do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ortet.errors import Unavailable
from ortet.server.context import Desk
from ortet.server.errors import JSON
from ortet.server.observability import metrics
from ortet.server.observability.parts import Part, check, settle


class Health:
    """`parts` are what the server works with."""

    def __init__(self, desk: Desk, parts: Sequence[Part]) -> None:
        self._desk = desk
        self._parts = parts
        self.stopping = False

    @property
    def looking(self) -> bool:
        """Whether some part is being looked at, or is stuck in that."""
        return any(part.looking is not None for part in self._parts)

    async def settle(self) -> None:
        """Before what is looked at is closed."""
        self.stopping = True
        await settle(self._parts)

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
        found = await check(self._parts)
        answer = {"ready": True, "not_well": found} if found else {"ready": True}
        return Response(msgspec.json.encode(answer), media_type=JSON)

    async def _metrics(self, _: Request) -> Response:
        text = await self._desk.in_thread(self._desk.metrics.text)
        return Response(text, headers={"content-type": metrics.TYPE})


def count_all(desk: Desk, streams: Callable[[], int]) -> None:
    """What is counted elsewhere."""
    limits, threads = desk.limits, desk.threads
    add = desk.metrics.gauge
    add("ortet_requests_in_progress", "Requests inside, without streams.", lambda: limits.requests)
    add("ortet_streams", "Streams and terminals that are open.", streams)
    add("ortet_threads_working", "Threads that work.", lambda: threads.working)
    add("ortet_threads_waiting", "Requests that wait for a thread.", lambda: threads.waiting)
    add("ortet_rooms", "Sessions that are open here.", partial(_rooms, desk))
    add("ortet_stores", "Stores that are open here.", lambda: len(desk.tenants.open()))
    desk.metrics.family(
        "ortet_refused_total", "Requests over a limit.", "limit", lambda: dict(limits.refused)
    )


def _rooms(desk: Desk) -> float:
    return sum(rooms.count for rooms in desk.tenants.open().values())
