"""Reads and writes files below a directory that others may change at the same time.

Paths are walked one name at a time with O_NOFOLLOW, so no path leads out of the directory.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.machines.dirfd import translate_os_error
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.middleware.idempotency import RecordedResponse, run_idempotent
from ortet.server.session_pool.machine_access import find_open_session
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.commit_files import path_of
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.server.transfers.uploads import MAX_UPLOAD_BYTES, Upload, receive_upload, scratch_file
from ortet.sessions.actions.artifacts import guess_media
from ortet.sessions.table import SessionRow

_WALK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_MAX_NAMES_LISTED = 10_000
EntryKind = Literal["file", "directory", "link", "other"]
_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}


class Present(msgspec.Struct, frozen=True):
    """A file, directory or link. `names`: the first 10 000 names of a directory."""

    path: str
    kind: EntryKind
    mode: str
    size: int
    mtime: int
    target: str | None = None
    names: list[str] = []


class Placed(msgspec.Struct, frozen=True):
    """The file that was written. `replaced`: a file with this path existed before."""

    path: str
    size: int
    mode: str
    replaced: bool


@contextmanager
def open_entry(root: Path, path: bytes) -> Iterator[int]:
    """Yield an O_PATH descriptor of a path below `root`. Links are not followed."""
    with _translate_os_errors(path):
        *above, name = path.split(b"/")
        with _open_directory(root, above) as directory:
            fd = os.open(name, _WALK_FLAGS, dir_fd=directory) if name else os.dup(directory)
        try:
            yield fd
        finally:
            os.close(fd)


def describe_entry(fd: int, path: bytes) -> Present:
    """Return the metadata of an entry, and the names in a directory."""
    about = os.fstat(fd)
    kind: EntryKind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
    target, names = None, list[str]()
    if kind == "link":
        target = os.fsdecode(os.readlink(b"", dir_fd=fd))
    elif kind == "directory":
        names = sorted(os.listdir(f"/proc/self/fd/{fd}"))[:_MAX_NAMES_LISTED]
    return Present(
        os.fsdecode(path),
        kind,
        stat.filemode(about.st_mode),
        about.st_size,
        about.st_mtime_ns,
        target,
        names,
    )


def write_file(root: Path, path: bytes, data: BinaryIO, *, mode: str, parents: bool) -> Placed:
    """Write a file atomically.

    An existing file keeps its owner; a new file has the owner of its directory.

    Raises:
        Conflict: The path is a directory.
    """
    *above, name = path.split(b"/")
    if not name:
        raise Conflict("is_directory", "the workspace is a directory: give the path of a file")
    with _translate_os_errors(path), _open_directory(root, above, make=parents) as directory:
        before = _stat_existing(name, directory)
        if before is not None and stat.S_ISDIR(before.st_mode):
            raise Conflict(
                "is_directory", f"{os.fsdecode(path)!r} is a directory: give the path of a file"
            )
        is_file = before is not None and stat.S_ISREG(before.st_mode)
        bits = parse_mode(mode) or (stat.S_IMODE(before.st_mode) if before and is_file else 0o644)
        owner = before if before and is_file else os.fstat(directory)
        part = f".ortet-{secrets.token_hex(8)}".encode()
        fd = os.open(part, _CREATE_FLAGS, 0o600, dir_fd=directory)
        try:
            with open(fd, "wb") as file:
                shutil.copyfileobj(data, file, _CHUNK_BYTES)
                size = file.tell()
                with suppress(PermissionError):
                    os.fchown(fd, owner.st_uid, owner.st_gid)
                os.fchmod(fd, bits)  # after fchown, which clears some bits
            os.rename(part, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=directory)
            raise
    return Placed(os.fsdecode(path), size, f"{bits:o}", replaced=before is not None)


def parse_mode(text: str) -> int:
    """Return the permission bits of octal text, or 0 for ""."""
    if not text:
        return 0
    if len(text) > 4 or not all(one in "01234567" for one in text) or not int(text, 8) & 0o777:
        raise Invalid("bad_mode", f"{text[:20]!r} is no mode: give octal digits as 644 or 755")
    return int(text, 8) & 0o777


def _stat_existing(name: bytes, dir_fd: int) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    return None


@contextmanager
def _open_directory(root: Path, names: Sequence[bytes], *, make: bool = False) -> Iterator[int]:
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            try:
                below = os.open(name, _WALK_FLAGS | os.O_DIRECTORY, dir_fd=directory)
            except FileNotFoundError:
                if not make:
                    raise
                below = _make_directory(name, directory)
            os.close(directory)
            directory = below
        yield directory
    finally:
        os.close(directory)


def _make_directory(name: bytes, dir_fd: int) -> int:
    above = os.fstat(dir_fd)
    with suppress(FileExistsError):  # created by another process meanwhile
        os.mkdir(name, 0o755, dir_fd=dir_fd)
        with suppress(PermissionError):
            os.chown(name, above.st_uid, above.st_gid, dir_fd=dir_fd, follow_symlinks=False)
    return os.open(name, _WALK_FLAGS | os.O_DIRECTORY, dir_fd=dir_fd)


@contextmanager
def _translate_os_errors(path: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _path_error(error, path) from error


def _path_error(error: OSError, path: bytes) -> OrtetError:
    shown = path.decode("utf-8", "backslashreplace")[:200]
    if error.errno == errno.ENOENT:
        return NotFound("no_file", f"there is no {shown!r} now: list above it")
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL):
        return Invalid(
            "bad_path", f"{shown!r} leads over a link, or what is no directory: give a plain path"
        )
    return translate_os_error(error, shown)


# The files of a session as they are now: put and read by stream, in its machine or directory.
#
# A path is walked a name at a time from the workspace, and no link is followed: whatever somebody
# in
# the machine does with names meanwhile, nothing else of this host is read or written.


class PutFile(msgspec.Struct, frozen=True):
    """`mode`: octal digits such as 755. Without it, a replaced file keeps its mode, and a new file
    has 644. `parents`: make missing directories; true by default.
    """

    mode: str = ""
    parents: bool = True


class GetFile(msgspec.Struct, frozen=True):
    """`download`: send it as a file to save, not to show."""

    download: bool = False


class _FileCopy(NamedTuple):
    file: BinaryIO
    size: int
    tag: str


async def list_present(streams: Streams, request: Request, ask: GetFile) -> Response:
    """List the present top directory of a session."""
    return await get_present(streams, request, ask)


async def get_present(streams: Streams, request: Request, ask: GetFile) -> Response:
    """Return a present file of a session as bytes, or a part of it (Range). The file is read in the
    machine of the session or in its directory. A directory or a link is returned as JSON. A machine
    that is not open is opened.
    """
    row = await streams.row(request, request.path_params["session"])
    request.state.caller.need_host()
    path, pool = path_of(request), streams.session_pool(request)
    content: Present | _FileCopy = await streams.context.in_thread(partial(_read, pool, row, path))
    if isinstance(content, Present):
        headers = {"x-content-type-options": "nosniff", "ortet-kind": content.kind}
        return Response(wire.to_json(content), headers=headers, media_type="application/json")
    copy, name = content, os.fsdecode(path.rpartition(b"/")[2])
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
    """Write the request body to a present file of a session, in its machine or directory. An
    existing file is replaced atomically.
    """
    caller, path = request.state.caller, path_of(request)
    row = await streams.row(request, request.path_params["session"])
    caller.need_host()
    parse_mode(ask.mode)
    pool = streams.session_pool(request)
    async with receive_upload(streams, request, pool.upload_directory) as upload:
        put = partial(_put, pool, row, caller, request, ask, path, upload)
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
            written = write_file(
                session.path, path, upload.file, mode=ask.mode, parents=ask.parents
            )
        return RecordedResponse(200 if written.replaced else 201, wire.to_json(written))

    key = request.headers.get("idempotency-key")
    if key is None:
        return done()
    asked = f"PUT {request.url.path}?{request.url.query}\n".encode() + upload.digest
    with pool.hub() as hub:
        return run_idempotent(hub, key, caller.token, asked, done)[0]
