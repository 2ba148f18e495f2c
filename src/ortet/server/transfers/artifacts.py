"""Artifacts over HTTP: upload and download by stream."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import Invalid
from ortet.journal.state.records import Artifact
from ortet.objects.blobs import read_range
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.middleware.idempotency import RecordedResponse, run_idempotent
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.server.transfers.uploads import Upload, receive_upload
from ortet.sessions.actions.artifacts import content_of, find, guess_media
from ortet.sessions.table import SessionRow

_UNSPECIFIC_MEDIA = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""Content types that clients send when they do not know the type."""


class PutArtifact(msgspec.Struct, frozen=True):
    """`media`: the media type. Without it, the header Content-Type is used, or the end of the name.
    `allow_secrets`: store the artifact even if it contains a known secret.
    """

    kind: str = ""
    media: str = ""
    why: str = ""
    allow_secrets: bool = False


class GetArtifact(msgspec.Struct, frozen=True):
    """`version`: the version of the artifact, by default the last. `download`: send it as a file to
    save, not to show.
    """

    version: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    download: bool = False


async def put_artifact(streams: Streams, request: Request, ask: PutArtifact) -> Response:
    """Store the request body as an artifact. If the name exists already, this is its next
    version.
    """
    pool, caller = streams.session_pool(request), request.state.caller
    row = await streams.row(request, request.path_params["session"])
    if ask.allow_secrets:
        caller.need("admin")
    async with receive_upload(streams, request, pool.upload_directory) as upload:
        put = _ArtifactUpload(pool, row, caller, request, ask, upload)
        done: RecordedResponse = await streams.context.in_thread(put.answer)
    headers = {"etag": done.etag}
    return Response(done.body, done.status, headers=headers, media_type="application/json")


class _ArtifactUpload:
    """One received upload. Its methods run in a thread."""

    def __init__(  # noqa: PLR0917 - in the order it is looked at
        self,
        pool: SessionPool,
        row: SessionRow,
        caller: Caller,
        request: Request,
        ask: PutArtifact,
        upload: Upload,
    ) -> None:
        self._pool = pool
        self._row = row
        self._caller = caller
        self._request = request
        self._ask = ask
        self._upload = upload

    def answer(self) -> RecordedResponse:
        key = self._request.headers.get("idempotency-key")
        if key is None:
            return self._store_artifact()
        url = self._request.url
        asked = f"PUT {url.path}?{url.query}\n".encode() + self._upload.digest
        with self._pool.hub() as hub:
            return run_idempotent(hub, key, self._caller.token, asked, self._store_artifact)[0]

    def _store_artifact(self) -> RecordedResponse:
        ask, name = self._ask, self._request.path_params["name"]
        media_type = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        media = ask.media or ("" if media_type in _UNSPECIFIC_MEDIA else media_type)
        with self._pool.open_session(self._row) as session:
            record = session.artifact(
                name,
                kind=ask.kind,
                data=self._upload.file,
                media=media,
                why=ask.why,
                allow_secrets=ask.allow_secrets,
            )
        return RecordedResponse(201, wire.to_json(record), f'"{record.oid}"')


async def get_artifact(streams: Streams, request: Request, ask: GetArtifact) -> Response:
    """Return the content of an artifact, or a part of it (Range)."""
    row = await streams.row(request, request.path_params["session"])
    pool, name = streams.session_pool(request), request.path_params["name"]
    artifact: Artifact = await streams.in_thread(partial(_find, pool, row.id, name, ask.version))
    content = content_of(artifact)

    def read(offset: int, size: int) -> bytes:
        with pool.hub() as hub:
            return b"".join(read_range(hub.objects, content, offset, size))

    stored = ResponseContent(
        size=artifact.size,
        tag=artifact.oid or "empty",
        media=artifact.media or guess_media(artifact.name, None),
        name=artifact.name,
        read=read,
    )
    answer = ContentResponse(streams, request, stored, download=ask.download)
    answer.headers["ortet-version"] = str(artifact.version)
    return answer


def _find(pool: SessionPool, session: str, name: str, version: int | None) -> Artifact:
    if "\0" in name:
        raise Invalid("bad_name", "the name of an artifact contains a NUL: give a name without one")
    with pool.view(session) as view:
        return find(view.internals.state.artifacts, name, version)
