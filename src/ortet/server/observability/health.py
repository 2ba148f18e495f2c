"""The routes for operators: /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ortet._util.lock_timeout import lock_timeout
from ortet.config.open_shared_store import is_shared
from ortet.errors import Unavailable, Unsupported
from ortet.hub.hub import Hub
from ortet.server.context import AppContext
from ortet.server.errors import JSON
from ortet.server.observability import metrics

# Health checks of the services that a server needs: disk, database and bucket.
#
# Each check runs in at most one thread, however many probes ask. A probe has a time limit, because
# load balancers ask every few seconds.

_log = logging.getLogger(__name__)

CHECK_TIMEOUT_SECONDS = 2.0
"""Time after which a check without an answer counts as failed. Half of it if not vital."""
_LOCK_TIMEOUT_SECONDS = 1.5
"""Lock timeout within a check.

It is shorter than the check's, so that the error is still reported.
"""
_RESULT_TTL_SECONDS = 0.5
"""Time for which a good result is reused, because anybody may ask."""

HealthProbe = Callable[[], None]
"""A function that raises an exception if the service is not healthy."""


class HealthCheck:
    """The health check of one service. Used from one event loop.

    A probe that hangs keeps running, and no second one is started. The server is not ready while a
    `vital` check fails.
    """

    def __init__(self, name: str, probe: HealthProbe, *, vital: bool = True) -> None:
        self.name = name
        self.vital = vital
        self._probe = probe
        self._started_at = 0.0
        self._running: asyncio.Future[None] | None = None
        self._problem = ""
        self._healthy_at: float | None = None  # time of the last good result
        self._last_logged = ""

    @property
    def running(self) -> asyncio.Future[None] | None:
        """The future of the running check, or None."""
        return self._running

    async def problem(self) -> str:
        """Return the problem of the service, or "". Concurrent callers share one check."""
        if (
            self._healthy_at is not None
            and time.monotonic() - self._healthy_at < _RESULT_TTL_SECONDS
        ):
            return ""
        running = self._running or self._start()
        limit = CHECK_TIMEOUT_SECONDS if self.vital else CHECK_TIMEOUT_SECONDS / 2
        left = self._started_at + limit - time.monotonic()
        await asyncio.wait([running], timeout=max(0.0, left))
        if not running.done():
            return (
                f"its {self.name} has not answered for {time.monotonic() - self._started_at:.0f} s"
            )
        return self._problem

    def _start(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        begun, running = time.monotonic(), loop.create_future()
        name = f"ortet-look-{self.name}"
        Thread(target=self._run, args=(loop,), name=name, daemon=True).start()
        self._started_at, self._running = begun, running  # the thread will complete it
        return running

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the probe in its own thread: all request threads may wait for this service."""
        wrong = ""
        try:
            with lock_timeout(_LOCK_TIMEOUT_SECONDS):
                self._probe()
        except _Unhealthy as error:
            wrong = str(error)
        except Exception as error:
            self._log_once(error)
            wrong = f"its {self.name} cannot be used"
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._on_finished, time.monotonic(), wrong)

    def _log_once(self, error: Exception) -> None:
        """Log an error once until it changes or the service recovers."""
        if str(error) != self._last_logged:
            self._last_logged = str(error)
            _log.error("not ready", exc_info=error)

    def _on_finished(self, when: float, problem: str) -> None:
        running, self._running = self._running, None
        self._problem, self._healthy_at = problem, None if problem else when
        self._last_logged = self._last_logged if problem else ""
        if running is not None and not running.done():
            running.set_result(None)


class _Unhealthy(Exception):
    """A problem whose message tells callers nothing about this host."""


def store_health_checks(hub: Hub, min_free_bytes: int) -> list[HealthCheck]:
    """Return the checks of a store. Its disk must have `min_free_bytes` free."""
    shared = is_shared(hub.url)
    rows = "database" if shared else "store"
    checks = [
        HealthCheck("disk", partial(_check_disk_space, str(hub.root), min_free_bytes)),
        HealthCheck(rows, partial(_check_catalog_writable, hub, rows)),
    ]
    if shared:  # journals and cached objects need no bucket
        probe = partial(hub.bucket.check_reachable, _LOCK_TIMEOUT_SECONDS)
        checks.append(HealthCheck("bucket", probe, vital=False))
    return checks


def _check_disk_space(root: str, min_free_bytes: int) -> None:
    space = os.statvfs(root)
    if space.f_bavail * space.f_frsize < min_free_bytes:
        raise _Unhealthy("its disk is full")


def _check_catalog_writable(hub: Hub, name: str) -> None:
    try:
        hub.catalog.check_format()
        # The value never changes; the check is that the row can be written.
        hub.catalog.put_row("serve", "ready", b"")
    except Unsupported as error:
        if error.kind != "newer_format":
            raise
        words = f"its {name} was changed by a newer Ortet, and this server must be upgraded"
        raise _Unhealthy(words) from error


async def run_checks(checks: Sequence[HealthCheck]) -> list[str]:
    """Return the names of the services that are not healthy.

    Raises:
        Unavailable: `not_ready`, if a vital check failed.
    """
    problems = await asyncio.gather(*(check.problem() for check in checks))
    wrong = [(check, words) for check, words in zip(checks, problems, strict=True) if words]
    names = [check.name for check, _ in wrong]
    if any(check.vital for check, _ in wrong):
        words = ", ".join(words for _, words in wrong)
        raise Unavailable("not_ready", f"{words}: ask another server, or try again", parts=names)
    return names


async def wait_for_checks(checks: Sequence[HealthCheck]) -> None:
    """Wait for running checks, before the services that they use are closed."""
    if running := [check.running for check in checks if check.running is not None]:
        await asyncio.wait(running, timeout=CHECK_TIMEOUT_SECONDS)


class Health:
    """Answers health probes. `checks` cover the services that the server depends on."""

    def __init__(self, context: AppContext, checks: Sequence[HealthCheck]) -> None:
        self._context = context
        self._checks = checks
        self.stopping = False

    @property
    def looking(self) -> bool:
        """True if a health check is running, or hangs."""
        return any(check.running is not None for check in self._checks)

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
            raise Unavailable("stopping", "this server is stopping: use another server")
        failed = await run_checks(self._checks)
        answer = {"ready": True, "not_well": failed} if failed else {"ready": True}
        return Response(msgspec.json.encode(answer), media_type=JSON)

    async def _metrics(self, _: Request) -> Response:
        text = await self._context.in_thread(self._context.metrics.text)
        return Response(text, headers={"content-type": metrics.MEDIA_TYPE})


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
    return sum(pool.count for pool in context.tenants.open_pools().values())
