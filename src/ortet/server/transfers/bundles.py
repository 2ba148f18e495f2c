"""Bundles over HTTP: commits with all their objects as one file, downloaded and uploaded by
stream.
"""

from __future__ import annotations

import os
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid, OrtetError
from ortet.ids import to_hex
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.middleware.idempotency import RecordedResponse, run_idempotent
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.server.transfers.uploads import receive_upload, temporary_directory

MEDIA = "application/vnd.ortet.bundle"


class ReadBundle(msgspec.Struct, frozen=True):
    """`ref`: a commit, a branch or a tag. The parameter may be repeated."""

    ref: list[str] = []


class SendBundle(msgspec.Struct, frozen=True):
    """`name`: the origin of the bundle, for the reflog of each branch."""

    name: str = "upload"


class Imported(msgspec.Struct, frozen=True):
    """The branches that were imported, and the commit of each."""

    branches: dict[str, str]


async def read_bundle(streams: Streams, request: Request, ask: ReadBundle) -> Response:
    """Return commits with all their objects in one file. `ortet import` and POST /bundles accept
    it.
    """
    if not ask.ref:
        raise Invalid("no_refs", "a bundle needs a commit: give ref=, a branch, a tag or an id")
    make = partial(
        _export_bundle, streams, request.state.caller, streams.session_pool(request), ask.ref
    )
    stored: ResponseContent = await streams.context.in_thread(make)
    return ContentResponse(streams, request, stored, download=True)


def _export_bundle(
    streams: Streams, caller: Caller, pool: SessionPool, refs: list[str]
) -> ResponseContent:
    """Write the bundle to a file and remove its name before it is sent.

    No file is left over, even if the server is killed during the transfer.
    """
    with temporary_directory(pool.upload_directory) as place:
        with pool.hub() as hub:
            oids = [streams.commit_visibility.resolve_commit(hub, caller, ref) for ref in refs]
            named = refs if not caller.agents else [to_hex(oid) for oid in oids]
            report = hub.export(named, place / "bundle")
        fd = os.open(place / "bundle", os.O_RDONLY | os.O_CLOEXEC)
    return ResponseContent(
        size=report.size,
        tag="-".join(to_hex(oid) for oid in oids)[:400],
        media=MEDIA,
        name=f"{to_hex(oids[0])[:12]}.bundle",
        read=lambda at, size: os.pread(fd, size, at),
        close=lambda: os.close(fd),
    )


async def send_bundle(streams: Streams, request: Request, ask: SendBundle) -> Response:
    """Import a bundle. The whole bundle is verified before a branch is made."""
    if not ask.name or "/" in ask.name or len(ask.name) > 200 or not ask.name.isprintable():
        raise Invalid("bad_name", "a bundle needs a short name for its origin: give name=")
    pool, caller = streams.session_pool(request), request.state.caller
    async with receive_upload(streams, request, pool.upload_directory) as upload:
        asked = f"POST {request.url.path}?{request.url.query}\n".encode() + upload.digest

        def take() -> RecordedResponse:
            with temporary_directory(pool.upload_directory) as place, pool.hub() as hub:
                (place / ask.name).symlink_to(upload.path)
                try:
                    branches = hub.import_(place / ask.name)
                except OrtetError as error:  # do not reveal paths of this host
                    message = error.message.replace(f"{place}/", "")
                    raise type(error)(error.kind, message) from error
            return RecordedResponse(201, wire.to_json(Imported(branches)))

        def answer() -> RecordedResponse:
            key = request.headers.get("idempotency-key")
            if key is None:
                return take()
            with pool.hub() as hub:
                return run_idempotent(hub, key, caller.token, asked, take)[0]

        done: RecordedResponse = await streams.context.in_thread(answer)
    return Response(done.body, done.status, media_type="application/json")
