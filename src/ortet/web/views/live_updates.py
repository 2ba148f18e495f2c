"""A stream that tells open pages that the store has changed, so that they reload.

The events do not say what changed. The reloaded page applies the caller's rights. A module of its
own, because it is the only stream of the pages.
"""

from __future__ import annotations

from functools import partial

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ortet.errors import OrtetError
from ortet.server.errors import error_response
from ortet.server.streaming.sse import HEARTBEAT_SECONDS, StreamPage, StreamSource, make_event
from ortet.server.streaming.streams import Streams
from ortet.server.streaming.wakeups import ANY_TOPIC

PATH = "/live"
_MIN_INTERVAL_SECONDS = 0.5
"""Minimum time between two events. Changes in between are reported together."""


class ChangeCursor(msgspec.Struct, frozen=True):
    """The number of events that were sent."""

    count: int = 0

    def __str__(self) -> str:
        return str(self.count)


class StoreChangeSource(StreamSource):
    """Yields an event `changed` when anything in the store has changed."""

    topics = (ANY_TOPIC,)

    async def page(self, cursor: ChangeCursor) -> StreamPage:
        if cursor.count:
            await anyio.sleep(_MIN_INTERVAL_SECONDS)
        now = ChangeCursor(cursor.count + 1)
        return StreamPage(
            [make_event({}, id=str(now), name="changed")] if cursor.count else [], now
        )


def live_routes(streams: Streams) -> list[BaseRoute]:
    """Return the route GET /live."""
    return [Route(PATH, partial(_live, streams), name="live")]


async def _live(streams: Streams, request: Request) -> Response:
    try:
        (await streams.context.authenticate(request)).need("read")
        return await streams.answer(request, StoreChangeSource(), ChangeCursor(), HEARTBEAT_SECONDS)
    except OrtetError as error:
        return error_response(error)
