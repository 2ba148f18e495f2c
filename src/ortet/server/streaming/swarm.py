"""The progress of a swarm as a stream, with an event for each change of an attempt.

The id of an event has the state of every attempt that the client has seen. Any server can continue
the stream from it, even if the server that ran the swarm was killed. A client that reconnects late
gets the present states, without the states between.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.sse import (
    Follow,
    StreamEvent,
    StreamPage,
    StreamSource,
    make_event,
    request_cursor,
)
from ortet.server.streaming.streams import Streams
from ortet.sessions.swarm_api import Attempt, SwarmResult, swarm_topic
from ortet.sessions.table import SessionRow

_STATES = ("waiting", "running", "done", "failed", "stopped")
_STAGES = ("", "running", "chosen", "kept", "harvested", "finished")
_MAX_CURSOR_BYTES = 10_000


class SwarmCursor(msgspec.Struct, frozen=True):
    """The state that a client has seen: one byte for each attempt, and the stage of the swarm."""

    attempts: bytes = b""
    stage: int = 0

    def __str__(self) -> str:
        packed = zlib.compress(bytes([self.stage]) + self.attempts, 9)
        return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def parse_swarm_cursor(text: str) -> SwarmCursor:
    """Return the cursor of an event id, or raise Invalid(`bad_cursor`)."""
    if not text:
        return SwarmCursor()
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        raw = zlib.decompressobj().decompress(packed, _MAX_CURSOR_BYTES)
        return SwarmCursor(raw[1:], raw[0])
    except (binascii.Error, zlib.error, ValueError, IndexError) as error:
        raise Invalid(
            "bad_cursor", f"{text[:100]!r} is no place in a swarm: give the id of an event"
        ) from error


def attempt_mark(attempt: Attempt) -> int:
    """Return a byte that changes whenever the reported state of the attempt changes."""
    return 1 + (attempt.tries % 40) * len(_STATES) + _STATES.index(attempt.state)


class SwarmStage(msgspec.Struct, frozen=True):
    """The stage of a swarm. `kept`, `conflicts` and `harvested` are set when they are known."""

    name: str
    session: str
    state: str
    commit: str
    attempts: int
    kept: list[int]
    conflicts: list[str]
    harvested: int


class SwarmSource(StreamSource):
    """The progress of a swarm as a stream."""

    def __init__(self, streams: Streams, pool: SessionPool, row: SessionRow, name: str) -> None:
        self.topics = (swarm_topic(row.id),)
        self._streams = streams
        self._pool = pool
        self._id = row.id
        self._name = name

    async def page(self, cursor: SwarmCursor) -> StreamPage:
        key = ("swarm", id(self._pool), self._id, self._name, cursor)
        return await self._streams.read(key, partial(self._read, cursor))

    def _read(self, cursor: SwarmCursor) -> StreamPage:
        with self._pool.hub() as hub:
            result = hub.swarms.get(hub.get(self._id), self._name)
        events: list[StreamEvent] = []
        seen = bytearray(cursor.attempts.ljust(len(result.attempts), b"\0"))
        for attempt in result.attempts:
            if seen[attempt.i] != attempt_mark(attempt):
                seen[attempt.i] = attempt_mark(attempt)
                cursor = SwarmCursor(bytes(seen), cursor.stage)
                events.append(make_event(attempt, id=str(cursor), kind=attempt.state))
        stage = _STAGES.index(result.state)
        if stage != cursor.stage:
            cursor = SwarmCursor(bytes(seen), stage)
            events.append(make_event(_stage(result), id=str(cursor), name="swarm"))
        return StreamPage(events, cursor, over="finished" if result.state == "finished" else "")


def _stage(swarm: SwarmResult) -> SwarmStage:
    return SwarmStage(
        name=swarm.name,
        session=swarm.session,
        state=swarm.state,
        commit=swarm.commit,
        attempts=len(swarm.attempts),
        kept=swarm.kept,
        conflicts=swarm.conflicts,
        harvested=len(swarm.harvested),
    )


async def swarm_stream(streams: Streams, request: Request, ask: Follow) -> Response:
    """Stream the attempts of a swarm: first all present states, then each change, until the swarm
    is finished. An event `swarm` says that the swarm has reached another stage.
    """
    row = await streams.row(request, request.path_params["session"])
    pool, name = streams.session_pool(request), request.path_params["name"]
    source = SwarmSource(streams, pool, row, name)
    return await streams.answer(
        request, source, parse_swarm_cursor(request_cursor(request, ask)), ask.heartbeat
    )
