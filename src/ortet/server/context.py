"""What every route needs: who asks, the stores, threads, limits, counts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request

from ortet._util.deadlines import patient
from ortet.backends.base import Cache
from ortet.config.settings import Serve
from ortet.errors import Unavailable
from ortet.server.auth.authenticate import Gate
from ortet.server.auth.commit_visibility import Sight
from ortet.server.auth.tokens import Caller
from ortet.server.errors import Unknown
from ortet.server.middleware.rate_limit import Limits
from ortet.server.middleware.thread_pool import Threads
from ortet.server.observability.logs import Log
from ortet.server.observability.metrics import Metrics
from ortet.server.session_pool.tenants import Tenants

_INSIDE = 4
"""Requests of one token for one session that have a thread; the others wait without one."""

_LOCKS = 6
"""Times the patience of a request: hundreds of our own threads may stand before the same lock, and
SQLite wakes them in no order."""


class Desk:
    def __init__(
        self, gate: Gate, tenants: Tenants, settings: Serve, log: Log, *, cache: Cache | None = None
    ) -> None:
        self.gate = gate
        self.tenants = tenants
        self.limits = Limits(settings, cache)
        self.metrics = Metrics()
        self.log = log
        self.sight = Sight()
        self.threads = Threads(settings.threads)
        self._lines: dict[tuple[str, str], _Line] = {}

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """The core blocks: it works in threads, which a client that goes away does not stop. A
        store that another process keeps locked is waited for longer than a busy session is."""
        seconds = _LOCKS * self.limits.settings.patience
        return await self.threads.run(partial(_patiently, seconds, function))

    async def caller(self, request: HTTPConnection) -> Caller:
        caller: Caller = await self.in_thread(partial(self.known, request))
        return caller

    def known(self, request: HTTPConnection) -> Caller:
        """The same for who is in a thread already. Counted once a request: see Entry."""
        state = request.scope["state"]
        try:
            caller = self.gate.caller(request)
        except Unknown:
            client = request.scope.get("client")
            self.limits.stranger(client[0] if client else "")
            raise
        if "caller" not in state:
            self.limits.admit(caller)
            state["caller"] = caller
        return caller

    def line(self, request: Request) -> _Standing:
        """Who asks much of one session waits for its turn here, in order, and keeps no thread from
        others."""
        who = request.headers.get("authorization") or request.headers.get("cookie", "")
        key = (who, request.path_params["session"])
        return _Standing(self._lines, key, self.limits.settings.patience)


def _patiently(seconds: float, function: Callable[[], Any]) -> Any:
    with patient(seconds):
        return function()


class _Standing:
    """One request in a line, which is there as long as somebody stands in it."""

    def __init__(
        self, lines: dict[tuple[str, str], _Line], key: tuple[str, str], patience: float
    ) -> None:
        self._lines = lines
        self._key = key
        self._patience = patience

    async def __aenter__(self) -> None:
        line = self._line = self._lines.setdefault(self._key, _Line())
        line.users += 1
        try:
            await line.enter(self._patience)
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._line.leave()
        self._leave()

    def _leave(self) -> None:
        self._line.users -= 1
        if not self._line.users:
            self._lines.pop(self._key, None)


class _Line:
    def __init__(self) -> None:
        self.users = 0
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, patience: float) -> None:
        if self._inside < _INSIDE:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, patience)
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    "session_busy",
                    "the session is doing something else: try again, or leave it a comment",
                ) from None
            raise

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._inside -= 1
