"""The progress of a swarm, as it is made: each attempt when something has become of it.

The id of an event says what the client has seen of every attempt, so that any server can go on from
there, also when the one that drives the swarm was killed meanwhile. Who was away for long is told
how things are now, not all that was in between.
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
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.sse import Follow, Page, Source, Told, cursor_of, tell
from ortet.server.streaming.streams import Streams
from ortet.sessions.swarm_api import Attempt, SwarmResult, swarm_topic
from ortet.sessions.table import SessionRow

_STATES = ("waiting", "running", "done", "failed", "stopped")
_STAGES = ("", "running", "chosen", "kept", "harvested", "finished")
_MOST = 10_000


class Seen(msgspec.Struct, frozen=True):
    """A byte of each attempt: how often it was begun, and what has become of it; and how far the
    swarm is. `last`: its end was told."""

    attempts: bytes = b""
    stage: int = 0

    def __str__(self) -> str:
        packed = zlib.compress(bytes([self.stage]) + self.attempts, 9)
        return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def parse_seen(text: str) -> Seen:
    if not text:
        return Seen()
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        raw = zlib.decompressobj().decompress(packed, _MOST)
        return Seen(raw[1:], raw[0])
    except (binascii.Error, zlib.error, ValueError, IndexError) as error:
        raise Invalid(
            "bad_cursor", f"{text[:100]!r} is no place in a swarm: give the id of an event"
        ) from error


def mark(attempt: Attempt) -> int:
    """What is told of it differs when this does."""
    return 1 + (attempt.tries % 40) * len(_STATES) + _STATES.index(attempt.state)


class SwarmStage(msgspec.Struct, frozen=True):
    """How far a swarm is; `kept`, `conflicts` and `harvested` once that is known."""

    name: str
    session: str
    state: str
    commit: str
    attempts: int
    kept: list[int]
    conflicts: list[str]
    harvested: int


class SwarmSource(Source):
    def __init__(self, streams: Streams, rooms: Rooms, row: SessionRow, name: str) -> None:
        self.topics = (swarm_topic(row.id),)
        self._streams = streams
        self._rooms = rooms
        self._id = row.id
        self._name = name

    async def page(self, cursor: Seen) -> Page:
        key = ("swarm", id(self._rooms), self._id, self._name, cursor)
        return await self._streams.read(key, partial(self._read, cursor))

    def _read(self, cursor: Seen) -> Page:
        with self._rooms.hub() as hub:
            found = hub.swarms.get(hub.get(self._id), self._name)
        told: list[Told] = []
        seen = bytearray(cursor.attempts.ljust(len(found.attempts), b"\0"))
        for one in found.attempts:
            if seen[one.i] != mark(one):
                seen[one.i] = mark(one)
                cursor = Seen(bytes(seen), cursor.stage)
                told.append(tell(one, id=str(cursor), kind=one.state))
        stage = _STAGES.index(found.state)
        if stage != cursor.stage:
            cursor = Seen(bytes(seen), stage)
            told.append(tell(_stage(found), id=str(cursor), name="swarm"))
        return Page(told, cursor, over="finished" if found.state == "finished" else "")


def _stage(found: SwarmResult) -> SwarmStage:
    return SwarmStage(
        name=found.name,
        session=found.session,
        state=found.state,
        commit=found.commit,
        attempts=len(found.attempts),
        kept=found.kept,
        conflicts=found.conflicts,
        harvested=len(found.harvested),
    )


async def swarm_stream(streams: Streams, request: Request, ask: Follow) -> Response:
    """The attempts of a swarm, each as it is now and then again whenever it has changed, until the
    swarm is finished. `swarm`: it came to another stage."""
    row = await streams.row(request, request.path_params["session"])
    rooms, name = streams.rooms(request), request.path_params["name"]
    source = SwarmSource(streams, rooms, row, name)
    return await streams.answer(request, source, parse_seen(cursor_of(request, ask)), ask.heartbeat)
