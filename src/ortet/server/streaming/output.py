"""The output of a program in a live machine as a stream, from any byte that the machine still has.

The id of an event is JOB:POSITION. The position is that of the next event.
"""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import ExitStack
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid
from ortet.server.streaming.output_fanout import OutputFanout
from ortet.server.streaming.sse import (
    Follow,
    StreamEvent,
    StreamPage,
    StreamSource,
    make_event,
    request_cursor,
)
from ortet.server.streaming.streams import Streams

_CURSOR = re.compile(r"(?:([0-9]{1,18}):)?([0-9]{1,18})(:over)?\Z")


class FollowOutput(Follow, frozen=True):
    """`encoding`: "text", where bytes that are not UTF-8 are replaced, or "base64"."""

    encoding: Literal["text", "base64"] = "text"


class OutputCursor(msgspec.Struct, frozen=True):
    """A position in the output of a job. `over`: the client knows that the job has ended."""

    job: int
    position: int = 0
    over: bool = False

    def __str__(self) -> str:
        return f"{self.job}:{self.position}" + (":over" if self.over else "")


class OutputSource(StreamSource):
    """The output of a program as a stream. `resources` is closed with the stream."""

    def __init__(self, fanout: OutputFanout, encoding: str, resources: ExitStack) -> None:
        self.topics = (fanout.topic,)
        self._fanout = fanout
        self._encoding = encoding
        self._resources = resources

    async def page(self, cursor: OutputCursor) -> StreamPage:
        if cursor.over:
            return StreamPage([], cursor, over="exited")
        piece = await self._fanout.read(cursor.position)
        events: list[StreamEvent] = []
        data = piece.data
        if self._encoding == "text" and not piece.eof:
            data = data[: len(data) - incomplete_utf8_length(data)]
        end = piece.cursor - (len(piece.data) - len(data))
        begin = end - len(data)
        if begin != cursor.position:
            # Output was lost from the buffer, or the machine was restored to an earlier state.
            gone = {"position": begin, "missed": max(0, begin - cursor.position)}
            events.append(make_event(gone, id=f"{cursor.job}:{begin}", name="moved"))
        if data:
            shown = b64encode(data) if self._encoding == "base64" else data
            about = {"position": begin, "data": shown.decode("utf-8", "replace")}
            events.append(make_event(about, id=f"{cursor.job}:{end}"))
        now = OutputCursor(cursor.job, end, over=piece.eof)
        if piece.eof:
            events.append(make_event({"code": piece.code}, id=str(now), name="exit"))
        return StreamPage(events, now, more=bool(data), over="exited" if piece.eof else "")

    def close(self) -> None:
        self._resources.close()


def incomplete_utf8_length(data: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < size else 0
        if byte < 0x80:
            return 0
    return 0


async def output_stream(streams: Streams, request: Request, ask: FollowOutput) -> Response:
    """Stream the output of a service or shell until it ends (`exit`). The stream starts at the
    first byte that is kept, or after `after`. An event `moved` says that bytes are lost, and that
    the stream continues at another position.
    """
    row = await streams.row(request, request.path_params["session"])
    text = request_cursor(request, ask)
    match = _CURSOR.match(text or "0")
    if match is None:
        raise Invalid("bad_cursor", f"{text[:100]!r} is no place in an output: give an event's id")
    pool, wakeups = streams.session_pool(request), streams.wakeups(request)
    program = await streams.output_fanouts.find(pool, row, request.path_params["name"])
    resources = ExitStack()
    fanout = resources.enter_context(streams.output_fanouts.follow(wakeups, row.id, program))
    cursor = OutputCursor(fanout.job.id)
    if match[1] in (None, str(fanout.job.id)):  # else another program of this name was started
        cursor = OutputCursor(fanout.job.id, int(match[2]), over=bool(match[3]))
    source = OutputSource(fanout, ask.encoding, resources)
    return await streams.answer(request, source, cursor, ask.heartbeat)
