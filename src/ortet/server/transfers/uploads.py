"""Request bodies of any size, received into unnamed files on the disk of the store.

An unnamed file is removed when its last descriptor is closed, also if the process is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio
from starlette.requests import ClientDisconnect, Request

from ortet.errors import Invalid
from ortet.server.errors import TooLarge, TooSlow, token_revoked
from ortet.server.streaming.streams import Streams

MAX_UPLOAD_BYTES = 16 << 30
"""Maximum size of an upload."""
RESERVED_DISK_BYTES = 256 << 20
"""Disk space that uploads must leave free."""
_CHUNK_BYTES = 1 << 20
_DIGESTS: dict[str, Any] = {"sha-256": sha256, "sha-512": sha512}
_DIGEST = re.compile(r"\s*(sha-256|sha-512)=:?([A-Za-z0-9+/]{1,100}={0,2}):?\s*\Z", re.IGNORECASE)


class Upload:
    """A received body. `digest` is its SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0
        self._sums = {name: made() for name, made in _DIGESTS.items()}

    @property
    def digest(self) -> bytes:
        digest: bytes = self._sums["sha-256"].digest()
        return digest

    @property
    def path(self) -> Path:
        """A path by which this process can open the file again."""
        return Path(f"/proc/self/fd/{self.file.fileno()}")

    def write(self, data: bytes) -> None:
        """Append data to the file and to the digests."""
        self.file.write(data)
        self.size += len(data)
        for checksum in self._sums.values():
            checksum.update(data)

    def check_digest(self, request: Request) -> None:
        """Raise Invalid if the body does not match a digest header (RFC 9530 and RFC 3230)."""
        for header in ("content-digest", "repr-digest", "digest"):
            for value in filter(None, request.headers.get(header, "").split(",")):
                match = _DIGEST.match(value)
                if match is None:
                    continue  # unknown algorithms are ignored
                name = match[1].lower()
                if b64decode(match[2]) != self._sums[name].digest():
                    raise Invalid(
                        "bad_digest", f"the body does not have the {name} of {header}: send it anew"
                    )


@asynccontextmanager
async def receive_upload(
    streams: Streams, request: Request, directory: Path, largest: int = MAX_UPLOAD_BYTES
) -> AsyncIterator[Upload]:
    """Receive and check the whole body. The file is removed at the end of the block.

    Raises:
        TooLarge: The body is too large, or the disk has no room for it.
        TooSlow: No data arrived in time.
        Invalid: The client disconnected, or the digest differs.
        Unauthorized: The token was revoked during the upload.
    """
    length_text = request.headers.get("content-length", "")
    if length_text.isdigit():
        _check_disk_space(int(length_text), directory, largest)
    with await streams.in_thread(partial(scratch_file, directory)) as file:
        upload = Upload(file)
        try:
            await _receive_body(streams, request, upload, directory, largest)
        except ClientDisconnect:
            raise Invalid("cut_off", "the body ended too early: send it again") from None
        upload.check_digest(request)
        if not await streams.is_authorized(request):
            raise token_revoked()
        yield upload


def scratch_file(directory: Path) -> BinaryIO:
    """Return a temporary file without a name."""
    directory.mkdir(mode=0o700, exist_ok=True)
    return cast("BinaryIO", tempfile.TemporaryFile(dir=directory))


async def _receive_body(
    streams: Streams, request: Request, upload: Upload, directory: Path, largest: int
) -> None:
    parts: list[bytes] = []
    held = 0
    body, slowest = request.stream().__aiter__(), streams.context.rate_limiter.settings.body_seconds
    while True:
        try:
            with anyio.fail_after(slowest):
                part = await anext(body, None)
        except TimeoutError:
            raise TooSlow(
                "too_slow", f"nothing came of the body for {slowest:g} s: send it anew"
            ) from None
        if part:
            parts.append(part)
            held += len(part)
        if held >= _CHUNK_BYTES or part is None:
            data, parts, held = b"".join(parts), [], 0
            _check_disk_space(
                upload.size + len(data), directory, largest, already_stored=upload.size
            )
            await streams.in_thread(partial(upload.write, data))
        if part is None:
            await streams.in_thread(upload.file.flush)
            return


@contextmanager
def temporary_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory that is removed afterwards.

    Directories of dead processes are removed too.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    for left in directory.glob("*.*.*"):
        if not Path(f"/proc/{left.name.split('.')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=f"place.{os.getpid()}.", dir=directory))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def _check_disk_space(size: int, directory: Path, largest: int, already_stored: int = 0) -> None:
    if size > largest:
        raise TooLarge("too_large", f"the body has more than {largest} bytes: send less at once")
    free = (
        shutil.disk_usage(directory if directory.exists() else directory.parent).free
        + already_stored
    )
    # The body is stored twice: here and in the store.
    if 2 * size + RESERVED_DISK_BYTES > free and size > _CHUNK_BYTES:
        raise TooLarge("no_room", f"there is no room for {size} bytes: free some of the disk")
