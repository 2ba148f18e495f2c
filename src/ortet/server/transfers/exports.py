"""Exports of a session: the journal as JSONL, with one JSON object a line, and the conversation in
formats of other programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import BinaryIO, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.hub.hub import Hub
from ortet.integrations.otel_export import spans_of
from ortet.server import wire
from ortet.server.schemas import Number, event_of
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.streams import Streams
from ortet.server.transfers.content import ContentResponse, ResponseContent
from ortet.server.transfers.uploads import temporary_directory
from ortet.sessions.table import SessionRow

MEDIA = "application/x-ndjson"
JSON = "application/json"
Format = Literal["openai", "openai-responses", "anthropic", "otel"]


class ReadJournal(msgspec.Struct, frozen=True):
    """`since` and `upto`: the numbers of the first and the last event."""

    since: Number = 0
    upto: Number | None = None


class ExportSession(msgspec.Struct, frozen=True):
    """`whole`: include messages that were compacted. `content`: include the text of messages in
    spans.
    """

    format: Format
    whole: bool = False
    content: bool = False


async def export_session(streams: Streams, request: Request, ask: ExportSession) -> Response:
    """Return the conversation of a session as messages for a model API, or its events as spans of
    OpenTelemetry (OTLP).
    """
    row = await streams.row(request, request.path_params["session"])
    lines = partial(_export_messages, row, ask)
    make = partial(_store_export, streams.session_pool(request), f"{row.id}.json", lines, JSON)
    return ContentResponse(streams, request, await streams.context.in_thread(make), download=True)


def _export_messages(row: SessionRow, ask: ExportSession, hub: Hub) -> Iterator[bytes]:
    view = hub.get(row.id)
    if ask.format == "otel":
        yield msgspec.json.encode(spans_of(view, content=ask.content))
    else:
        yield msgspec.json.encode(view.conversation.export_messages(ask.format, whole=ask.whole))


async def read_journal(streams: Streams, request: Request, ask: ReadJournal) -> Response:
    """Return the journal of a session as JSONL, with the events of GET …/events, one a line."""
    row = await streams.row(request, request.path_params["session"])
    make = partial(
        _store_export, streams.session_pool(request), f"{row.id}.jsonl", partial(_events, row, ask)
    )
    return ContentResponse(streams, request, await streams.context.in_thread(make), download=True)


def _events(row: SessionRow, ask: ReadJournal, hub: Hub) -> Iterator[bytes]:
    for event in hub.get(row.id).events(max(ask.since - 1, 0), ask.upto):
        yield wire.to_json(event_of(event)) + b"\n"


def _store_export(
    pool: SessionPool, name: str, produce: Callable[[Hub], Iterable[bytes]], media: str = MEDIA
) -> ResponseContent:
    """Write the export to a file and remove its name before it is sent.

    No file is left over, even if the server is killed during the transfer.
    """
    with temporary_directory(pool.upload_directory) as place:
        with pool.hub() as hub, (place / "lines").open("wb") as file:
            size, tag = _write(file, produce(hub))
        fd = os.open(place / "lines", os.O_RDONLY | os.O_CLOEXEC)
    return ResponseContent(
        size=size,
        tag=tag,
        media=media,
        name=name,
        read=lambda at, count: os.pread(fd, count, at),
        close=lambda: os.close(fd),
    )


def _write(file: BinaryIO, pieces: Iterable[bytes]) -> tuple[int, str]:
    size, sum_ = 0, sha256()
    for piece in pieces:
        size += file.write(piece)
        sum_.update(piece)
    return size, sum_.hexdigest()
