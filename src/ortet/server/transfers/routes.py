"""The table of routes that stream: events, uploads, downloads and terminals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ortet.journal.state.records import Artifact
from ortet.server import wire
from ortet.server.operations.registry import TokenScope
from ortet.server.streaming.journal import FollowJournal, journal_stream
from ortet.server.streaming.output import FollowOutput, output_stream
from ortet.server.streaming.sse import MEDIA, Follow
from ortet.server.streaming.streams import Streams
from ortet.server.streaming.swarm import swarm_stream
from ortet.server.streaming.terminal import PATH as TERMINAL
from ortet.server.streaming.terminal import terminal
from ortet.server.table import RawPathRoute, RawPathWebSocketRoute
from ortet.server.transfers.artifacts import GetArtifact, PutArtifact, get_artifact, put_artifact
from ortet.server.transfers.bundles import MEDIA as BUNDLE
from ortet.server.transfers.bundles import (
    Imported,
    ReadBundle,
    SendBundle,
    read_bundle,
    send_bundle,
)
from ortet.server.transfers.commit_files import FileList, ReadFile, list_files, read_file
from ortet.server.transfers.exports import MEDIA as LINES
from ortet.server.transfers.exports import ExportSession, ReadJournal, export_session, read_journal
from ortet.server.transfers.workspace_files import (
    GetFile,
    Placed,
    Present,
    PutFile,
    get_present,
    list_present,
    put_present,
)

BINARY_MEDIA, JSON = "application/octet-stream", "application/json"
StreamingHandler = Callable[[Streams, Request, Any], Awaitable[Response]]


class StreamingRoute(NamedTuple):
    """One route. Its OpenAPI text is built from these fields and the docstring of the handler.

    `request_type` is the query. `request_media` and `response_media` are media types of the bodies,
    "" for none. `response_type` is the type of a JSON response.
    """

    method: str
    path: str
    needs: TokenScope
    request_type: type[msgspec.Struct]
    handler: StreamingHandler
    response_media: str
    request_media: str = ""
    response_type: type[msgspec.Struct] | None = None
    status: int = 200

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def text(self) -> str:
        return self.handler.__doc__ or ""


_ARTIFACT = "/sessions/{session}/artifacts/{name:path}"
_OUTPUT = "/sessions/{session}/jobs/{name}/output/stream"
_FILES = "/commits/{commit}/files"
_SESSION_FILES_PATH = "/sessions/{session}/files"
_SWARM = "/sessions/{session}/swarms/{name}/stream"

STREAMING_ROUTES = (
    StreamingRoute(
        "GET", "/sessions/{session}/events/stream", "read", FollowJournal, journal_stream, MEDIA
    ),
    StreamingRoute("GET", _OUTPUT, "read", FollowOutput, output_stream, MEDIA),
    StreamingRoute("GET", _SWARM, "read", Follow, swarm_stream, MEDIA),
    StreamingRoute(
        "GET", _SESSION_FILES_PATH, "write", GetFile, list_present, JSON, response_type=Present
    ),
    StreamingRoute(
        "GET", _SESSION_FILES_PATH + "/{path:path}", "write", GetFile, get_present, BINARY_MEDIA
    ),
    StreamingRoute(
        "PUT",
        _SESSION_FILES_PATH + "/{path:path}",
        "write",
        PutFile,
        put_present,
        JSON,
        BINARY_MEDIA,
        Placed,
        201,
    ),
    StreamingRoute("GET", _ARTIFACT, "read", GetArtifact, get_artifact, BINARY_MEDIA),
    StreamingRoute(
        "PUT", _ARTIFACT, "write", PutArtifact, put_artifact, JSON, BINARY_MEDIA, Artifact, 201
    ),
    StreamingRoute("GET", _FILES, "read", ReadFile, list_files, JSON, response_type=FileList),
    StreamingRoute("GET", _FILES + "/{path:path}", "read", ReadFile, read_file, BINARY_MEDIA),
    StreamingRoute("GET", "/sessions/{session}/journal", "read", ReadJournal, read_journal, LINES),
    StreamingRoute(
        "GET", "/sessions/{session}/export", "read", ExportSession, export_session, JSON
    ),
    StreamingRoute("GET", "/bundles", "read", ReadBundle, read_bundle, BUNDLE),
    StreamingRoute(
        "POST", "/bundles", "admin", SendBundle, send_bundle, JSON, BUNDLE, Imported, 201
    ),
)


def streaming_routes(streams: Streams) -> list[BaseRoute]:
    """Return the Starlette routes of the table and of the terminal."""
    routes: list[BaseRoute] = [RawPathWebSocketRoute(TERMINAL, partial(terminal, streams))]
    for flow in STREAMING_ROUTES:
        answer = _endpoint(streams, flow)
        routes.append(RawPathRoute(flow.path, answer, methods=[flow.method], name=flow.name))
    return routes


def _endpoint(streams: Streams, route: StreamingRoute) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        caller = await streams.context.authenticate(request)
        caller.need(route.needs)
        query = request.query_params.multi_items()
        ask = wire.parse_request(route.request_type, path={}, query=query, body=None)
        return await route.handler(streams, request, ask)

    return answer
