"""The files of a session as they are now: put and read by stream, in its machine or directory.

A path is walked a name at a time from the workspace, and no link is followed: whatever somebody in
the machine does with names meanwhile, nothing else of this host is read or written.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.middleware.idempotency import Answered, once
from ortet.server.session_pool.machine_access import opened
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.commit_files import path_of
from ortet.server.transfers.content import Content, Stored
from ortet.server.transfers.uploads import LARGEST, Upload, received, scratch_file
from ortet.server.transfers.workspace_files import Present, look, mode_of, place, walked
from ortet.sessions.actions.artifacts import guess_media
from ortet.sessions.table import SessionRow

_PIECE = 1 << 20


class PutFile(msgspec.Struct, frozen=True):
    """`mode` in octal digits, as 755; one that is replaced keeps its own without it, a new one has
    644. Directories above it that are missing are made, unless `parents` is false."""

    mode: str = ""
    parents: bool = True


class GetFile(msgspec.Struct, frozen=True):
    """`download`: for a file, not to be shown."""

    download: bool = False


class _Copy(NamedTuple):
    file: BinaryIO
    size: int
    tag: str


async def list_present(streams: Streams, request: Request, ask: GetFile) -> Response:
    """The directory of a session as it is now."""
    return await get_present(streams, request, ask)


async def get_present(streams: Streams, request: Request, ask: GetFile) -> Response:
    """A file as it is now, in the machine of the session or its directory, as bytes or a part of
    them (Range); a directory or a link as JSON. The machine is opened where it does not live."""
    row = await streams.row(request, request.path_params["session"])
    request.state.caller.need_host()
    path, rooms = path_of(request), streams.rooms(request)
    found: Present | _Copy = await streams.desk.in_thread(partial(_read, rooms, row, path))
    if isinstance(found, Present):
        headers = {"x-content-type-options": "nosniff", "ortet-kind": found.kind}
        return Response(wire.to_json(found), headers=headers, media_type="application/json")
    copy, name = found, os.fsdecode(path.rpartition(b"/")[2])
    stored = Stored(
        size=copy.size,
        tag=copy.tag,
        media=guess_media(name, None),
        name=name,
        read=lambda at, size: os.pread(copy.file.fileno(), size, at),
        done=copy.file.close,
    )
    answer = Content(streams, request, stored, download=ask.download)
    answer.headers["ortet-kind"] = "file"
    return answer


def _read(rooms: Rooms, row: SessionRow, path: bytes) -> Present | _Copy:
    _, machine = opened(rooms, row.id)
    if machine is not None:  # at once, whatever else is done with it
        return _found(machine.path, path, rooms.scratch)
    with rooms.enter(row) as session:
        return _found(session.path, path, rooms.scratch)


def _found(root: Path, path: bytes, scratch: Path) -> Present | _Copy:
    with walked(root, path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return look(fd, path)
        source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(source, "rb") as file:
        return _copied(file, scratch)


def _copied(source: BinaryIO, scratch: Path) -> _Copy:
    """A file of our own: the other may change while it is sent, and a machine that has one of its
    files open here cannot go away."""
    about, copy = os.fstat(source.fileno()), scratch_file(scratch)
    try:
        while data := source.read(_PIECE):
            copy.write(data)
            if copy.tell() > LARGEST:
                raise Invalid("too_large", f"it has more than {LARGEST} bytes: commit it instead")
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return _Copy(copy, copy.tell(), f"{about.st_ino:x}-{about.st_mtime_ns:x}-{copy.tell():x}")


async def put_present(streams: Streams, request: Request, ask: PutFile) -> Response:
    """Write the body to a file of the session as it is now, in its machine or directory; one that
    is there is replaced in one step."""
    caller, path = request.state.caller, path_of(request)
    row = await streams.row(request, request.path_params["session"])
    caller.need_host()
    mode_of(ask.mode)
    rooms = streams.rooms(request)
    async with received(streams, request, rooms.scratch) as upload:
        put = partial(_put, rooms, row, caller, request, ask, path, upload)
        done: Answered = await streams.desk.in_thread(put)
    return Response(done.body, done.status, media_type="application/json")


def _put(  # noqa: PLR0917 - in the order it is looked at
    rooms: Rooms,
    row: SessionRow,
    caller: Caller,
    request: Request,
    ask: PutFile,
    path: bytes,
    upload: Upload,
) -> Answered:
    def done() -> Answered:
        with rooms.enter(row) as session:
            upload.file.seek(0)
            made = place(session.path, path, upload.file, mode=ask.mode, parents=ask.parents)
        return Answered(200 if made.replaced else 201, wire.to_json(made))

    key = request.headers.get("idempotency-key")
    if key is None:
        return done()
    asked = f"PUT {request.url.path}?{request.url.query}\n".encode() + upload.digest
    with rooms.hub() as hub:
        return once(hub, key, caller.token, asked, done)[0]
