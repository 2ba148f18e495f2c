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

from ortet._util.deadlines import patient
from ortet.config.open_shared_store import is_shared
from ortet.errors import Unavailable, Unsupported
from ortet.hub.hub import Hub
from ortet.server.observability.logs import Log

LIMIT = 2.0
"""Seconds after which a part that says nothing is not well; half of it where the server can do some
of its work without, so that who asks is answered in time."""
_PATIENCE = 1.5
"""Seconds for which a look waits: a part that can say why is heard in time."""
_FRESH = 0.5
"""Seconds for which a part is known to be well: anybody may ask."""

Look = Callable[[], None]
"""Raises what is wrong."""


class Part:
    """Used from one event loop. A look that hangs goes on, and no other is begun: it ends when what
    it waits for is there again. A server is not ready without its `vital` ones."""

    def __init__(self, name: str, look: Look, log: Log, *, vital: bool = True) -> None:
        self.name = name
        self.vital = vital
        self._look = look
        self._log = log
        self._begun = 0.0
        self._looking: asyncio.Future[None] | None = None
        self._wrong = ""
        self._well: float | None = None  # when it last was
        self._said = ""

    @property
    def looking(self) -> asyncio.Future[None] | None:
        """Done when the look that is under way has ended."""
        return self._looking

    async def wrong(self) -> str:
        """What is wrong with it, if anything. Who comes while it is looked at shares that look."""
        if self._well is not None and time.monotonic() - self._well < _FRESH:
            return ""
        looking = self._looking or self._begin()
        limit = LIMIT if self.vital else LIMIT / 2
        left = self._begun + limit - time.monotonic()
        await asyncio.wait([looking], timeout=max(0.0, left))
        if not looking.done():
            return f"its {self.name} has not answered for {time.monotonic() - self._begun:.0f} s"
        return self._wrong

    def _begin(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        begun, looking = time.monotonic(), loop.create_future()
        name = f"ortet-look-{self.name}"
        Thread(target=self._run, args=(loop,), name=name, daemon=True).start()
        self._begun, self._looking = begun, looking  # now that a thread will end it
        return looking

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: those that serve requests may all wait for the same part."""
        wrong = ""
        try:
            with patient(_PATIENCE):
                self._look()
        except _NotWell as error:
            wrong = str(error)
        except Exception as error:
            self._tell(error)
            wrong = f"its {self.name} cannot be used"
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(self._ended, time.monotonic(), wrong)

    def _tell(self, error: Exception) -> None:
        """Once, however often it is asked for."""
        if str(error) != self._said:
            self._said = str(error)
            self._log.fault("not ready", error)

    def _ended(self, when: float, wrong: str) -> None:
        looking, self._looking = self._looking, None
        self._wrong, self._well = wrong, None if wrong else when
        self._said = self._said if wrong else ""
        if looking is not None and not looking.done():
            looking.set_result(None)


class _NotWell(Exception):
    """In words that tell strangers nothing of this host."""


def parts_of(home: Hub, reserve: int, log: Log) -> list[Part]:
    """Those of a store; `reserve`: bytes that its disk must have left."""
    shared = is_shared(home.url)
    rows = "database" if shared else "store"
    found = [
        Part("disk", partial(_has_room, str(home.root), reserve), log),
        Part(rows, partial(_takes_rows, home, rows), log),
    ]
    if shared:  # journals, and all that a host has read, need no bucket
        look = partial(home.bucket.answers, _PATIENCE)
        found.append(Part("bucket", look, log, vital=False))
    return found


def _has_room(root: str, reserve: int) -> None:
    space = os.statvfs(root)
    if space.f_bavail * space.f_frsize < reserve:
        raise _NotWell("its disk is full")


def _takes_rows(home: Hub, name: str) -> None:
    try:
        home.catalog.check_format()
        # the row's value is the same each time: what counts is that it can be written
        home.catalog.put_row("serve", "ready", b"")
    except Unsupported as error:
        if error.kind != "newer_format":
            raise
        words = f"its {name} was changed by a newer Ortet, and this server must be upgraded"
        raise _NotWell(words) from error


async def check(parts: Sequence[Part]) -> list[str]:
    """Names of those that are not well, or Unavailable("not_ready") when one of them is vital."""
    told = await asyncio.gather(*(part.wrong() for part in parts))
    wrong = [(part, words) for part, words in zip(parts, told, strict=True) if words]
    names = [part.name for part, _ in wrong]
    if any(part.vital for part, _ in wrong):
        words = ", ".join(words for _, words in wrong)
        raise Unavailable("not_ready", f"{words}: ask another server, or try again", parts=names)
    return names


async def settle(parts: Sequence[Part]) -> None:
    """Let looks that are under way end, before what they look at is closed."""
    if looking := [part.looking for part in parts if part.looking is not None]:
        await asyncio.wait(looking, timeout=LIMIT)
