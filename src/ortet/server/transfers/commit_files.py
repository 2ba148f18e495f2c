"""Files of a commit, read by stream. A path is looked up in the tree of the commit, never on the
server's host, so it cannot lead outside of the commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from stat import filemode
from typing import Annotated
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid, NotFound
from ortet.history.records import TreeEntry
from ortet.hub.hub import Hub
from ortet.ids import Oid, to_hex
from ortet.objects.blobs import read_range
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.sessions.actions.artifacts import guess_media

_FILES_PATH_PATTERN = re.compile(rb"/(?:commits|sessions)/[^/]+/files(?:/(.*))?\Z", re.DOTALL)


class ReadFile(msgspec.Struct, frozen=True):
    """`info`: return the metadata instead of the bytes. `limit` and `after`: for a directory, the
    number of names, and the `href` of the name before the first. `download`: send it as a file to
    save, not to show.
    """

    info: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    after: str = ""
    download: bool = False


class FileInfo(msgspec.Struct, frozen=True):
    """A file, directory or link. `href`: its percent-encoded path below its directory; names are
    bytes, and not every name is text. `target`: the target of a link as stored. Links are not
    followed.
    """

    name: str
    href: str
    kind: str  # "file", "directory", "link", "other"
    mode: str
    size: int
    mtime: int
    target: str | None = None
    content: str = ""  # id of a file's bytes


class FileList(msgspec.Struct, frozen=True):
    """A directory, or another entry that is not a file. `next`: the `after` of the next page."""

    commit: str
    path: str
    entry: FileInfo
    entries: list[FileInfo] = []
    next: str | None = None


async def list_files(streams: Streams, request: Request, ask: ReadFile) -> Response:
    """List the top directory of a commit's workspace as JSON."""
    return await read_file(streams, request, ask)


async def read_file(streams: Streams, request: Request, ask: ReadFile) -> Response:
    """Return a file of a commit as bytes, or a part of it (Range). A directory or a link is
    returned as JSON.
    """
    path = path_of(request)
    look = partial(_find_file, streams, request, path, ask)
    content: FileList | tuple[Oid, TreeEntry] = await streams.in_thread(look)
    if isinstance(content, FileList):
        headers = {"x-content-type-options": "nosniff", "ortet-kind": content.entry.kind}
        return Response(wire.to_json(content), headers=headers, media_type="application/json")
    entry, pool = content[1], streams.session_pool(request)

    def read(offset: int, size: int) -> bytes:
        with pool.hub() as hub:
            return b"".join(read_range(hub.objects, entry, offset, size))

    name = os.fsdecode(entry.name)
    media = guess_media(name, None)
    stored = ResponseContent(entry.size, entry.data.hex() or "empty", media, name, read)
    answer = ContentResponse(streams, request, stored, download=ask.download)
    answer.headers["ortet-kind"] = "file"
    return answer


def path_of(request: Request) -> bytes:
    """Return the path below the workspace as the raw bytes of the request.

    The decoded path of the request is not used, because it may have lost bytes that are not UTF-8.
    """
    match = _FILES_PATH_PATTERN.match(request.scope["raw_path"].partition(b"?")[0])
    path = unquote_to_bytes(match[1] or b"") if match else b"/"
    parts = path.removesuffix(b"/").split(b"/") if path else []
    if b"\0" in path or len(path) > 4096 or any(part in (b"", b".", b"..") for part in parts):
        raise _bad_path(path)
    return b"/".join(parts)


def _bad_path(path: bytes) -> Invalid:
    shown = path[:200].decode("utf-8", "backslashreplace")
    return Invalid("bad_path", f"{shown!r} is no path below a workspace: give a plain one")


def _find_file(
    streams: Streams, request: Request, path: bytes, ask: ReadFile
) -> FileList | tuple[Oid, TreeEntry]:
    caller: Caller = request.state.caller
    with streams.session_pool(request).hub() as hub:
        oid = streams.commit_visibility.resolve_commit(hub, caller, request.path_params["commit"])
        root = hub.store.read_image(hub.store.image_oid(oid)).root
        entry = hub.trees.resolve(root, path)
        if entry is None:
            shown = os.fsdecode(path)
            raise NotFound("no_file", f"commit {to_hex(oid)[:12]} has no {shown!r}: list above it")
        if entry.is_file and not ask.info:
            return oid, entry
        return _listed(hub, oid, path, entry, ask)


def _listed(hub: Hub, oid: Oid, path: bytes, entry: TreeEntry, ask: ReadFile) -> FileList:
    listing = FileList(to_hex(oid), os.fsdecode(path), info_of(entry))
    if not entry.is_dir or ask.info:
        return listing
    after = unquote_to_bytes(ask.after)
    page = list(islice(_entries(hub, Oid(entry.data), after), ask.limit + 1))
    some = [info_of(one) for one in page[: ask.limit]]
    rest = some[-1].href if len(page) > ask.limit else None
    return msgspec.structs.replace(listing, entries=some, next=rest)


def _entries(hub: Hub, tree: Oid, after: bytes) -> Iterator[TreeEntry]:
    return (entry for entry in hub.trees.entries(tree) if not after or entry.name > after)


def info_of(entry: TreeEntry) -> FileInfo:
    """Return the metadata of a tree entry."""
    if entry.is_dir:
        kind = "directory"
    elif entry.is_link:
        kind = "link"
    else:
        kind = "file" if entry.is_file else "other"
    return FileInfo(
        name=os.fsdecode(entry.name),
        href=quote_from_bytes(entry.name, safe=""),
        kind=kind,
        mode=filemode(entry.mode),
        size=entry.size,
        mtime=entry.mtime,
        target=os.fsdecode(entry.data) if entry.is_link else None,
        content=entry.data.hex() if entry.is_file else "",
    )
