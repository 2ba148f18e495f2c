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
from ortet.server.middleware.idempotency import RecordedResponse, run_idempotent
from ortet.server.session_pool.machine_access import find_open_session
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.commit_files import path_of
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.server.transfers.uploads import MAX_UPLOAD_BYTES, Upload, receive_upload, scratch_file
from ortet.server.transfers.workspace_files import (
    Present,
    describe_entry,
    open_entry,
    parse_mode,
    write_file,
)
from ortet.sessions.actions.artifacts import guess_media
from ortet.sessions.table import SessionRow

_CHUNK_BYTES = 1 << 20


class PutFile(msgspec.Struct, frozen=True):
    """`mode` in octal digits, as 755; one that is replaced keeps its own without it, a new one has
    644. Directories above it that are missing are made, unless `parents` is false."""

    mode: str = ""
    parents: bool = True


class GetFile(msgspec.Struct, frozen=True):
    """`download`: for a file, not to be shown."""

    download: bool = False


class _FileCopy(NamedTuple):
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
    path, rooms = path_of(request), streams.session_pool(request)
    found: Present | _FileCopy = await streams.context.in_thread(partial(_read, rooms, row, path))
    if isinstance(found, Present):
        headers = {"x-content-type-options": "nosniff", "ortet-kind": found.kind}
        return Response(wire.to_json(found), headers=headers, media_type="application/json")
    copy, name = found, os.fsdecode(path.rpartition(b"/")[2])
    stored = ResponseContent(
        size=copy.size,
        tag=copy.tag,
        media=guess_media(name, None),
        name=name,
        read=lambda at, size: os.pread(copy.file.fileno(), size, at),
        close=copy.file.close,
    )
    answer = ContentResponse(streams, request, stored, download=ask.download)
    answer.headers["ortet-kind"] = "file"
    return answer


def _read(pool: SessionPool, row: SessionRow, path: bytes) -> Present | _FileCopy:
    _, machine = find_open_session(pool, row.id)
    if machine is not None:  # does not wait for the session's lock
        return _read_entry(machine.path, path, pool.upload_directory)
    with pool.open_session(row) as session:
        return _read_entry(session.path, path, pool.upload_directory)


def _read_entry(root: Path, path: bytes, scratch: Path) -> Present | _FileCopy:
    with open_entry(root, path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return describe_entry(fd, path)
        source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(source, "rb") as file:
        return _copy_file(file, scratch)


def _copy_file(source: BinaryIO, scratch: Path) -> _FileCopy:
    """Copy a file before it is sent.

    The original may change during the transfer, and an open file would keep the machine from
    stopping.
    """
    about, copy = os.fstat(source.fileno()), scratch_file(scratch)
    try:
        while data := source.read(_CHUNK_BYTES):
            copy.write(data)
            if copy.tell() > MAX_UPLOAD_BYTES:
                raise Invalid(
                    "too_large", f"it has more than {MAX_UPLOAD_BYTES} bytes: commit it instead"
                )
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return _FileCopy(copy, copy.tell(), f"{about.st_ino:x}-{about.st_mtime_ns:x}-{copy.tell():x}")


async def put_present(streams: Streams, request: Request, ask: PutFile) -> Response:
    """Write the body to a file of the session as it is now, in its machine or directory; one that
    is there is replaced in one step."""
    caller, path = request.state.caller, path_of(request)
    row = await streams.row(request, request.path_params["session"])
    caller.need_host()
    parse_mode(ask.mode)
    rooms = streams.session_pool(request)
    async with receive_upload(streams, request, rooms.upload_directory) as upload:
        put = partial(_put, rooms, row, caller, request, ask, path, upload)
        done: RecordedResponse = await streams.context.in_thread(put)
    return Response(done.body, done.status, media_type="application/json")


def _put(  # noqa: PLR0917 - in the order it is looked at
    pool: SessionPool,
    row: SessionRow,
    caller: Caller,
    request: Request,
    ask: PutFile,
    path: bytes,
    upload: Upload,
) -> RecordedResponse:
    def done() -> RecordedResponse:
        with pool.open_session(row) as session:
            upload.file.seek(0)
            made = write_file(session.path, path, upload.file, mode=ask.mode, parents=ask.parents)
        return RecordedResponse(200 if made.replaced else 201, wire.to_json(made))

    key = request.headers.get("idempotency-key")
    if key is None:
        return done()
    asked = f"PUT {request.url.path}?{request.url.query}\n".encode() + upload.digest
    with pool.hub() as hub:
        return run_idempotent(hub, key, caller.token, asked, done)[0]
