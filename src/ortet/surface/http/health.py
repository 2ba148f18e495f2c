"""For those who look after a server: is it alive, can it work, what does it do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ortet.errors import OrtetError, Unavailable
from ortet.session.hub import Hub
from ortet.surface.http import metrics
from ortet.surface.http.answers import JSON
from ortet.surface.http.desk import Desk

_FRESH = 1.0
"""Seconds for which a look at the store is good: anybody may ask."""


class Health:
    """`home` is the store that the server was started with, `reserve` the bytes that its disk must
    have left."""

    def __init__(self, desk: Desk, home: Hub, reserve: int) -> None:
        self._desk = desk
        self._home = home
        self._reserve = reserve
        self._looked = 0.0
        self._wrong = ""
        self.stopping = False

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
        if time.monotonic() - self._looked > _FRESH:
            self._wrong = await self._desk.in_thread(self._look)
            self._looked = time.monotonic()
        if self._wrong:
            raise Unavailable("not_ready", f"{self._wrong}: ask another server, or try again")
        return Response(b'{"ready":true}', media_type=JSON)

    def _look(self) -> str:
        """What is wrong, in words that tell strangers nothing of this host."""
        try:
            space = os.statvfs(self._home.root)
            if space.f_bavail * space.f_frsize < self._reserve:
                return "its disk is full"
            # the row's value is the same each time: what counts is that it can be written
            self._home.catalog.put_row("serve", "ready", b"")
        except (OSError, OrtetError) as error:
            self._desk.log.fault("not ready", error)
            return "its store cannot be written"
        return ""

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
