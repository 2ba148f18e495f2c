"""What flows over HTTP, beside the operations: streams, uploads, downloads, terminals."""

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
from ortet.server.operations.registry import Needs
from ortet.server.streaming.journal import FollowJournal, journal_stream
from ortet.server.streaming.sse import MEDIA, Follow
from ortet.server.streaming.stream_output import FollowOutput, output_stream
from ortet.server.streaming.streams import Streams
from ortet.server.streaming.swarm import swarm_stream
from ortet.server.streaming.terminal import PATH as TERMINAL
from ortet.server.streaming.terminal import terminal
from ortet.server.table import Exact, ExactSocket
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
from ortet.server.transfers.present import (
    GetFile,
    PutFile,
    get_present,
    list_present,
    put_present,
)
from ortet.server.transfers.workspace_files import Placed, Present

ANY, JSON = "application/octet-stream", "application/json"
Flowing = Callable[[Streams, Request, Any], Awaitable[Response]]


class Flow(NamedTuple):
    """One line of the table. `ask` is what the query says; `takes` and `gives` are the media types
    of bodies, "" for none; `told` is the type of an answer that is JSON."""

    method: str
    path: str
    needs: Needs
    ask: type[msgspec.Struct]
    do: Flowing
    gives: str
    takes: str = ""
    told: type[msgspec.Struct] | None = None
    status: int = 200

    @property
    def name(self) -> str:
        return self.do.__name__

    @property
    def text(self) -> str:
        return self.do.__doc__ or ""


_ARTIFACT = "/sessions/{session}/artifacts/{name:path}"
_OUTPUT = "/sessions/{session}/jobs/{name}/output/stream"
_FILES = "/commits/{commit}/files"
_PRESENT = "/sessions/{session}/files"
_SWARM = "/sessions/{session}/swarms/{name}/stream"

FLOWS = (
    Flow("GET", "/sessions/{session}/events/stream", "read", FollowJournal, journal_stream, MEDIA),
    Flow("GET", _OUTPUT, "read", FollowOutput, output_stream, MEDIA),
    Flow("GET", _SWARM, "read", Follow, swarm_stream, MEDIA),
    Flow("GET", _PRESENT, "write", GetFile, list_present, JSON, told=Present),
    Flow("GET", _PRESENT + "/{path:path}", "write", GetFile, get_present, ANY),
    Flow("PUT", _PRESENT + "/{path:path}", "write", PutFile, put_present, JSON, ANY, Placed, 201),
    Flow("GET", _ARTIFACT, "read", GetArtifact, get_artifact, ANY),
    Flow("PUT", _ARTIFACT, "write", PutArtifact, put_artifact, JSON, ANY, Artifact, 201),
    Flow("GET", _FILES, "read", ReadFile, list_files, JSON, told=FileList),
    Flow("GET", _FILES + "/{path:path}", "read", ReadFile, read_file, ANY),
    Flow("GET", "/sessions/{session}/journal", "read", ReadJournal, read_journal, LINES),
    Flow("GET", "/sessions/{session}/export", "read", ExportSession, export_session, JSON),
    Flow("GET", "/bundles", "read", ReadBundle, read_bundle, BUNDLE),
    Flow("POST", "/bundles", "admin", SendBundle, send_bundle, JSON, BUNDLE, Imported, 201),
)


def flow_routes(streams: Streams) -> list[BaseRoute]:
    found: list[BaseRoute] = [ExactSocket(TERMINAL, partial(terminal, streams))]
    for flow in FLOWS:
        answer = _endpoint(streams, flow)
        found.append(Exact(flow.path, answer, methods=[flow.method], name=flow.name))
    return found


def _endpoint(streams: Streams, flow: Flow) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        caller = await streams.desk.caller(request)
        caller.need(flow.needs)
        query = request.query_params.multi_items()
        ask = wire.asked(flow.ask, path={}, query=query, body=None)
        return await flow.do(streams, request, ask)

    return answer
