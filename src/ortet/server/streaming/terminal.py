"""A terminal in a browser, or any WebSocket client, at a shell of a session's live machine.

Binary frames are what is typed, and what is shown. Text frames are JSON. From the client:
{"resize": {"rows": 24, "cols": 80}}. To it: {"exit": CODE}, {"missed": BYTES}, {"restored": true},
{"error": {...}}. Who leaves leaves the shell running; who comes sees what is kept of its output.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ortet._util.structs import known
from ortet.errors import Conflict, Invalid, OrtetError
from ortet.machines.control.jobs import Job
from ortet.server import wire
from ortet.server.errors import refusal, shape_of
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.output import Program, Tap
from ortet.server.streaming.sse import BEAT, DEAF
from ortet.server.streaming.streams import Streams
from ortet.sessions.table import SessionRow

PATH = "/sessions/{session}/terminal"
_FEED = 5.0
"""Seconds in which a program must have taken what was typed."""
_FRESH = 1.0
"""Seconds for which a token that shows output is taken to be valid without a look."""
_DONE, _AWAY, _POLICY, _FAULT, _RESTART = 1000, 1001, 1008, 1011, 1012

Lines = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: Lines
    cols: Lines


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a text frame of a client says."""

    resize: Size


class Attach(msgspec.Struct, frozen=True):
    """`name`: which of its shells; it is started at first use."""

    name: str = "main"
    rows: Lines = 24
    cols: Lines = 80
    why: str = "a terminal was opened"


async def terminal(streams: Streams, socket: WebSocket) -> None:
    """A shell in the machine of a session."""
    try:
        caller = await streams.desk.caller(socket)
        caller.need("write")
        caller.need_host()
        query = socket.query_params.multi_items()
        ask = wire.asked(Attach, path={}, query=query, body=None)
        streams.check()
        row = await streams.row(socket, socket.path_params["session"])
        rooms = streams.rooms(socket)
        await streams.desk.in_thread(partial(_begin, rooms, row, ask))
        program = await streams.taps.find(rooms, row, ask.name)
    except OrtetError as error:
        await socket.send_denial_response(refusal(error))
        return
    await socket.accept()
    with streams.counted():
        await _Attached(streams, socket, rooms, row, ask.name).run(program)


def _begin(rooms: Rooms, row: SessionRow, ask: Attach) -> None:
    """The shell runs; at a terminal of this size, which the last to come has chosen."""
    with rooms.enter(row) as session:
        job = session.shell(ask.name, why=ask.why, size=(ask.rows, ask.cols))
        if not any(one.id == job.id and one.tty is not None for one in session.jobs()):
            raise Conflict("not_a_shell", f"{ask.name!r} is no shell: follow its output instead")
        job.resize(ask.rows, ask.cols)


class _Attached:
    """One client at one shell."""

    def __init__(
        self, streams: Streams, socket: WebSocket, rooms: Rooms, row: SessionRow, name: str
    ) -> None:
        self._streams = streams
        self._socket = socket
        self._rooms = rooms
        self._row = row
        self._name = name
        self._job: Job | None = None

    async def run(self, program: Program) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def typed() -> None:
                    try:
                        while True:
                            await self._take(await self._socket.receive())
                    except WebSocketDisconnect:
                        group.cancel_scope.cancel()

                self._job = program.job
                group.start_soon(typed)
                try:
                    await self._end(*await self._show(program))
                except WebSocketDisconnect:  # what it typed before it left is still to be taken
                    group.cancel_scope.deadline = anyio.current_time() + DEAF
                else:
                    group.cancel_scope.cancel()
        except* (WebSocketDisconnect, TimeoutError):
            pass  # it is gone, or takes nothing any more

    async def _show(self, program: Program) -> tuple[int, Any]:
        """What comes, until there is a reason to end: the code that says so, and the last word."""
        while True:
            feed = self._streams.feed(self._socket)
            with self._streams.taps.on(feed, self._row.id, program) as tap:
                self._job = tap.job
                try:
                    return await self._follow(tap)
                except OrtetError as error:
                    failed = error
            try:
                program = await self._streams.taps.find(self._rooms, self._row, self._name)
            except OrtetError:
                return _FAULT, {"error": shape_of(failed)}
            await self._say({"restored": True})

    async def _follow(self, tap: Tap) -> tuple[int, Any]:
        cursor, clock = 0, asyncio.get_running_loop().time
        checked = clock()
        with tap.listen() as bell:
            while True:
                bell.heard()
                piece = await tap.read(cursor)
                if piece.missed and cursor:
                    await self._say({"missed": piece.missed})
                if piece.data:
                    await self._sent(self._socket.send_bytes(piece.data))
                cursor = piece.cursor
                if piece.eof:
                    return _DONE, {"exit": piece.code}
                if self._streams.stopping:
                    return _RESTART, None
                if clock() - checked >= (_FRESH if piece.data else BEAT):
                    if not await self._streams.may(self._socket):
                        return _POLICY, None
                    checked = clock()
                if not piece.data:
                    await bell.wait(BEAT)

    async def _take(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", _AWAY))
        assert self._job is not None
        if not await self._streams.may(self._socket):  # of what is typed nothing is done any more
            await self._end(_POLICY, None)
            raise WebSocketDisconnect(_POLICY)
        try:
            if (data := message.get("bytes")) is not None:
                await self._streams.desk.in_thread(partial(self._job.write, data, wait=_FEED))
            elif (text := message.get("text")) is not None:
                size = _control(text).resize
                await self._streams.desk.in_thread(partial(self._job.resize, size.rows, size.cols))
        except OrtetError as error:
            await self._say({"error": shape_of(error)})

    async def _end(self, code: int, word: Any) -> None:
        if word is not None:
            await self._say(word)
        await self._sent(self._socket.close(code))

    async def _say(self, word: Any) -> None:
        await self._sent(self._socket.send_text(wire.to_json(word).decode()))

    async def _sent(self, sending: Any) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            sending.close()
            raise WebSocketDisconnect(_AWAY)
        with anyio.fail_after(DEAF):
            await sending


def _control(text: str) -> Control:
    try:
        return msgspec.json.decode(text, type=known(Control))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Invalid(
            "bad_frame", f"{error}: a text frame is {{'resize': {{'rows': 24, 'cols': 80}}}}"
        ) from error
