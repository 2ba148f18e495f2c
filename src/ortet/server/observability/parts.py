"""What a server needs to work, and whether it is well: each part is looked at by one thread at a
time, however many ask, and nobody waits for long: a balancer asks every few seconds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

from ortet._util.deadlines import lock_timeout
from ortet.config.open_shared_store import is_shared
from ortet.errors import Unavailable, Unsupported
from ortet.hub.hub import Hub
from ortet.server.observability.logs import ServerLog

CHECK_TIMEOUT_SECONDS = 2.0
"""Seconds after which a part that says nothing is not well; half of it where the server can do some
of its work without, so that who asks is answered in time."""
_LOCK_TIMEOUT_SECONDS = 1.5
"""Seconds for which a look waits: a part that can say why is heard in time."""
_RESULT_TTL_SECONDS = 0.5
"""Seconds for which a part is known to be well: anybody may ask."""

HealthProbe = Callable[[], None]
"""Raises what is wrong."""


class HealthCheck:
    """Used from one event loop. A look that hangs goes on, and no other is begun: it ends when what
    it waits for is there again. A server is not ready without its `vital` ones."""

    def __init__(
        self, name: str, probe: HealthProbe, log: ServerLog, *, vital: bool = True
    ) -> None:
        self.name = name
        self.vital = vital
        self._probe = probe
        self._log = log
        self._started_at = 0.0
        self._running: asyncio.Future[None] | None = None
        self._problem = ""
        self._healthy_at: float | None = None  # when it last was
        self._last_logged = ""

    @property
    def running(self) -> asyncio.Future[None] | None:
        """Done when the look that is under way has ended."""
        return self._running

    async def problem(self) -> str:
        """What is wrong with it, if anything. Who comes while it is looked at shares that look."""
        if (
            self._healthy_at is not None
            and time.monotonic() - self._healthy_at < _RESULT_TTL_SECONDS
        ):
            return ""
        looking = self._running or self._start()
        limit = CHECK_TIMEOUT_SECONDS if self.vital else CHECK_TIMEOUT_SECONDS / 2
        left = self._started_at + limit - time.monotonic()
        await asyncio.wait([looking], timeout=max(0.0, left))
        if not looking.done():
            return (
                f"its {self.name} has not answered for {time.monotonic() - self._started_at:.0f} s"
            )
        return self._problem

    def _start(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        begun, looking = time.monotonic(), loop.create_future()
        name = f"ortet-look-{self.name}"
        Thread(target=self._run, args=(loop,), name=name, daemon=True).start()
        self._started_at, self._running = begun, looking  # now that a thread will end it
        return looking

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: those that serve requests may all wait for the same part."""
        wrong = ""
        try:
            with lock_timeout(_LOCK_TIMEOUT_SECONDS):
                self._probe()
        except _Unhealthy as error:
            wrong = str(error)
        except Exception as error:
            self._log_once(error)
            wrong = f"its {self.name} cannot be used"
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(self._on_finished, time.monotonic(), wrong)

    def _log_once(self, error: Exception) -> None:
        """Once, however often it is asked for."""
        if str(error) != self._last_logged:
            self._last_logged = str(error)
            self._log.log_exception("not ready", error)

    def _on_finished(self, when: float, problem: str) -> None:
        looking, self._running = self._running, None
        self._problem, self._healthy_at = problem, None if problem else when
        self._last_logged = self._last_logged if problem else ""
        if looking is not None and not looking.done():
            looking.set_result(None)


class _Unhealthy(Exception):
    """In words that tell strangers nothing of this host."""


def store_health_checks(hub: Hub, min_free_bytes: int, log: ServerLog) -> list[HealthCheck]:
    """Those of a store; `reserve`: bytes that its disk must have left."""
    shared = is_shared(hub.url)
    rows = "database" if shared else "store"
    found = [
        HealthCheck("disk", partial(_check_disk_space, str(hub.root), min_free_bytes), log),
        HealthCheck(rows, partial(_check_catalog_writable, hub, rows), log),
    ]
    if shared:  # journals, and all that a host has read, need no bucket
        look = partial(hub.bucket.check_reachable, _LOCK_TIMEOUT_SECONDS)
        found.append(HealthCheck("bucket", look, log, vital=False))
    return found


def _check_disk_space(root: str, min_free_bytes: int) -> None:
    space = os.statvfs(root)
    if space.f_bavail * space.f_frsize < min_free_bytes:
        raise _Unhealthy("its disk is full")


def _check_catalog_writable(hub: Hub, name: str) -> None:
    try:
        hub.catalog.check_format()
        # the row's value is the same each time: what counts is that it can be written
        hub.catalog.put_row("serve", "ready", b"")
    except Unsupported as error:
        if error.kind != "newer_format":
            raise
        words = f"its {name} was changed by a newer Ortet, and this server must be upgraded"
        raise _Unhealthy(words) from error


async def run_checks(checks: Sequence[HealthCheck]) -> list[str]:
    """Names of those that are not well, or Unavailable("not_ready") when one of them is vital."""
    told = await asyncio.gather(*(part.problem() for part in checks))
    wrong = [(part, words) for part, words in zip(checks, told, strict=True) if words]
    names = [part.name for part, _ in wrong]
    if any(part.vital for part, _ in wrong):
        words = ", ".join(words for _, words in wrong)
        raise Unavailable("not_ready", f"{words}: ask another server, or try again", parts=names)
    return names


async def wait_for_checks(checks: Sequence[HealthCheck]) -> None:
    """Let looks that are under way end, before what they look at is closed."""
    if looking := [part.running for part in checks if part.running is not None]:
        await asyncio.wait(looking, timeout=CHECK_TIMEOUT_SECONDS)
