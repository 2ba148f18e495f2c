"""A terminal for a WebSocket client, such as a browser, at a shell of a session's live machine.

Binary frames carry input from the client, and output to it. Text frames are JSON. From the client:
{"resize": {"rows": 24, "cols": 80}}. To the client: {"exit": CODE}, {"missed": BYTES},
{"restored": true}, {"error": {...}}. If a client disconnects, the shell keeps running. A client
that connects gets the output that is kept.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ortet._util.structs import thread_safe_struct
from ortet.errors import Conflict, Invalid, OrtetError
from ortet.machines.jobs import Job
from ortet.server import wire
from ortet.server.errors import error_body, error_response
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.output_fanout import FollowedProgram, OutputFanout
from ortet.server.streaming.sse import HEARTBEAT_SECONDS, SEND_TIMEOUT_SECONDS
from ortet.server.streaming.streams import Streams
from ortet.sessions.table import SessionRow

PATH = "/sessions/{session}/terminal"
_INPUT_TIMEOUT_SECONDS = 5.0
"""Time limit for a program to take typed input."""
_TOKEN_CHECK_SECONDS = 1.0
"""Time for which a token is not checked again while output is shown."""
_CLOSE_NORMAL, _CLOSE_GOING_AWAY, _CLOSE_POLICY, _CLOSE_ERROR, _CLOSE_RESTART = (
    1000,
    1001,
    1008,
    1011,
    1012,
)

Lines = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class TerminalSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: Lines
    cols: Lines


class TerminalControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a text frame from a client."""

    resize: TerminalSize


class Attach(msgspec.Struct, frozen=True):
    """`name`: the name of the shell. It is started at first use."""

    name: str = "main"
    rows: Lines = 24
    cols: Lines = 80
    why: str = "a terminal was opened"


async def terminal(streams: Streams, socket: WebSocket) -> None:
    """Connect to a shell in the machine of a session."""
    try:
        caller = await streams.context.authenticate(socket)
        caller.need("write")
        caller.need_host()
        query = socket.query_params.multi_items()
        ask = wire.parse_request(Attach, path={}, query=query, body=None)
        streams.check()
        row = await streams.row(socket, socket.path_params["session"])
        pool = streams.session_pool(socket)
        await streams.context.in_thread(partial(_start_shell, pool, row, ask))
        program = await streams.output_fanouts.find(pool, row, ask.name)
    except OrtetError as error:
        await socket.send_denial_response(error_response(error))
        return
    await socket.accept()
    with streams.count_stream():
        await _TerminalConnection(streams, socket, pool, row, ask.name).run(program)


def _start_shell(pool: SessionPool, row: SessionRow, ask: Attach) -> None:
    """Start the shell and set the size of its terminal. The last client chooses the size."""
    with pool.open_session(row) as session:
        job = session.shell(ask.name, why=ask.why, size=(ask.rows, ask.cols))
        if not any(one.id == job.id and one.tty is not None for one in session.programs.jobs()):
            raise Conflict("not_a_shell", f"{ask.name!r} is no shell: follow its output instead")
        job.resize(ask.rows, ask.cols)


class _TerminalConnection:
    """One client of one shell."""

    def __init__(
        self, streams: Streams, socket: WebSocket, pool: SessionPool, row: SessionRow, name: str
    ) -> None:
        self._streams = streams
        self._socket = socket
        self._pool = pool
        self._row = row
        self._name = name
        self._job: Job | None = None

    async def run(self, program: FollowedProgram) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def receive_input() -> None:
                    try:
                        while True:
                            await self._handle_message(await self._socket.receive())
                    except WebSocketDisconnect:
                        group.cancel_scope.cancel()

                self._job = program.job
                group.start_soon(receive_input)
                try:
                    await self._close(*await self._show(program))
                except WebSocketDisconnect:  # input that was received before is still written
                    group.cancel_scope.deadline = anyio.current_time() + SEND_TIMEOUT_SECONDS
                else:
                    group.cancel_scope.cancel()
        except* (WebSocketDisconnect, TimeoutError):
            pass  # the client left, or does not read

    async def _show(self, program: FollowedProgram) -> tuple[int, Any]:
        """Send output until there is a reason to end.

        Return the close code and the last message.
        """
        while True:
            feed = self._streams.wakeups(self._socket)
            with self._streams.output_fanouts.follow(feed, self._row.id, program) as fanout:
                self._job = fanout.job
                try:
                    return await self._follow(fanout)
                except OrtetError as error:
                    failed = error
            try:
                program = await self._streams.output_fanouts.find(self._pool, self._row, self._name)
            except OrtetError:
                return _CLOSE_ERROR, {"error": error_body(failed)}
            await self._send_json({"restored": True})

    async def _follow(self, fanout: OutputFanout) -> tuple[int, Any]:
        cursor, clock = 0, asyncio.get_running_loop().time
        checked = clock()
        with fanout.listen() as wakeup:
            while True:
                wakeup.pop_topics()
                piece = await fanout.read(cursor)
                if piece.missed and cursor:
                    await self._send_json({"missed": piece.missed})
                if piece.data:
                    await self._send(self._socket.send_bytes(piece.data))
                cursor = piece.cursor
                if piece.eof:
                    return _CLOSE_NORMAL, {"exit": piece.code}
                if self._streams.stopping:
                    return _CLOSE_RESTART, None
                if clock() - checked >= (_TOKEN_CHECK_SECONDS if piece.data else HEARTBEAT_SECONDS):
                    if not await self._streams.is_authorized(self._socket):
                        return _CLOSE_POLICY, None
                    checked = clock()
                if not piece.data:
                    await wakeup.wait(HEARTBEAT_SECONDS)

    async def _handle_message(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", _CLOSE_GOING_AWAY))
        assert self._job is not None
        # input of a revoked token is discarded
        if not await self._streams.is_authorized(self._socket):
            await self._close(_CLOSE_POLICY, None)
            raise WebSocketDisconnect(_CLOSE_POLICY)
        try:
            if (data := message.get("bytes")) is not None:
                await self._streams.context.in_thread(
                    partial(self._job.write, data, wait=_INPUT_TIMEOUT_SECONDS)
                )
            elif (text := message.get("text")) is not None:
                size = _control(text).resize
                await self._streams.context.in_thread(
                    partial(self._job.resize, size.rows, size.cols)
                )
        except OrtetError as error:
            await self._send_json({"error": error_body(error)})

    async def _close(self, code: int, message: Any) -> None:
        if message is not None:
            await self._send_json(message)
        await self._send(self._socket.close(code))

    async def _send_json(self, message: Any) -> None:
        await self._send(self._socket.send_text(wire.to_json(message).decode()))

    async def _send(self, coroutine: Any) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            coroutine.close()
            raise WebSocketDisconnect(_CLOSE_GOING_AWAY)
        with anyio.fail_after(SEND_TIMEOUT_SECONDS):
            await coroutine


def _control(text: str) -> TerminalControl:
    try:
        return msgspec.json.decode(text, type=thread_safe_struct(TerminalControl))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Invalid(
            "bad_frame", f"{error}: a text frame is {{'resize': {{'rows': 24, 'cols': 80}}}}"
        ) from error
